(() => {
  const root = document.documentElement;
  const stored = (() => { try { return localStorage.getItem("theme"); } catch { return null; } })();
  if (stored) root.dataset.theme = stored;
  const dark = () => root.dataset.theme
    ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const toggle = document.getElementById("theme");
  const name = () => { toggle.textContent = dark() ? "Light" : "Dark"; };
  toggle.hidden = false;
  name();
  toggle.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    try { localStorage.setItem("theme", root.dataset.theme); } catch { /* private window */ }
    name();
  });

  for (const button of document.querySelectorAll("[data-copy]")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      try { await navigator.clipboard.writeText(button.dataset.copy); button.textContent = "Copied"; }
      catch { button.textContent = "Select the text to copy"; }
    });
  }

  const tip = document.getElementById("tip");
  const show = (text, x, y) => {
    tip.textContent = text;
    tip.style.display = "block";
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(x + 12, innerWidth - box.width - 4)) + "px";
    tip.style.top = Math.max(4, y - box.height - 10) + "px";
  };
  const hide = () => { tip.style.display = "none"; };
  document.addEventListener("pointermove", event => {
    const on = event.target.closest?.("[data-tip]");
    if (on) return show(on.dataset.tip, event.clientX, event.clientY);
    const token = event.target.closest?.(".tokens i");
    if (!token) return hide();
    const box = token.closest(".tokens");
    const all = box.all ??= [...box.querySelectorAll("i")];
    const ids = box.ids ??= box.dataset.ids.split(" ");
    const at = all.indexOf(token);
    const kind = { p: "context", t: "scored", m: "masked" }[token.parentElement.className];
    show(`position ${+box.dataset.start + at} · id ${ids[at]} · ${kind}`, event.clientX, event.clientY);
  });
  document.addEventListener("scroll", hide, true);

  for (const select of document.querySelectorAll("[data-variants]")) {
    select.closest(".choice").hidden = false;
    const views = select.closest("figure").querySelectorAll(".view");
    select.addEventListener("change", () => views.forEach((view, i) => { view.hidden = i !== +select.value; }));
  }

  const current = document.querySelector("nav.pages [aria-current]");
  if (current) current.parentElement.scrollLeft =
    current.offsetLeft - (current.parentElement.clientWidth - current.offsetWidth) / 2;

  const unfold = () => {
    const target = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
    if (target && target.tagName === "DETAILS") { target.open = true; target.scrollIntoView(); }
  };
  addEventListener("hashchange", unfold);
  unfold();

  for (const input of document.querySelectorAll("[data-filter]")) {
    input.hidden = false;
    const items = document.querySelectorAll(input.dataset.filter);
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/);
      for (const item of items)
        item.hidden = !words.every(word => item.dataset.words.toLowerCase().includes(word));
    });
  }
})();
