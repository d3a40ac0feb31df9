// Served while the run goes on: what is new is put into the page, so that scrolling, zoom and choices stay.
const live = Number(document.documentElement.dataset.live);
async function refresh() {
  const reason = document.getElementById("reason");
  try {
    const answer = await fetch(location.pathname);
    if (!answer.ok) throw new Error(await answer.text());
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const id of ["reason", "tiles", "note", "sampled"]) {
      const now = document.getElementById(id), next = page.getElementById(id);
      if (now.innerHTML !== next.innerHTML) now.innerHTML = next.innerHTML;
    }
    const text = page.getElementById("data"), shown = document.getElementById("data");
    if (text.textContent !== shown.textContent) { shown.textContent = text.textContent; load(text.textContent); show(); }
  } catch (error) { reason.textContent = "not refreshed: " + error.message; }
  setTimeout(refresh, 1000 * live);
}
setTimeout(refresh, 1000 * live);
