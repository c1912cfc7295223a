// The page's address: all settings in the query string.

export function link(names, values) {
  const url = new URL(window.location.href);
  names.forEach((name, i) => url.searchParams.set(name, values[i]));
  window.history.replaceState(null, "", url);
  return url.toString();
}

export async function copyLink(names, values) {
  const url = link(names, values);
  try {
    await navigator.clipboard.writeText(url);
    return { status: "Link copied. It holds every setting.", tone: "good" };
  } catch {
    return { status: "The link is in the address bar; copy it from there.", tone: "good" };
  }
}
