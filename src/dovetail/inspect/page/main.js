/** Shows the page that the address names: the list, or one request. */

import { get } from "./api.js";
import { element, fill } from "./dom.js";
import { showList } from "./list.js";
import { showRequest } from "./request.js";

const main = /** @type {HTMLElement} */ (document.getElementById("main"));
/** Ends what the page that is left does in the background. */
let leaving = new AbortController();

async function route() {
  leaving.abort();
  leaving = new AbortController();
  const signal = leaving.signal;
  const [path, query = ""] = location.hash.replace(/^#/, "").split("?", 2);
  const [, page = "", name = ""] = path.split("/");
  fill(main);
  try {
    if (page === "request") await showRequest(main, decodeURIComponent(name), signal);
    else await showList(main, new URLSearchParams(query), signal);
  } catch (error) {
    if (signal.aborted) return;
    const message = error instanceof Error ? error.message : String(error);
    fill(main, element("p", { class: "problem", role: "alert" }, message), element("a", { href: "#/" }, "All requests"));
  }
}

async function introduce() {
  const server = await get("server");
  fill(/** @type {HTMLElement} */ (document.getElementById("server")), `${server.model} · ${server.version}`);
}

document.querySelector("a.skip")?.addEventListener("click", (event) => {
  event.preventDefault(); // the address is the router's
  main.focus();
});
addEventListener("hashchange", route);
introduce().catch(() => {}); // the page itself says why
route();
