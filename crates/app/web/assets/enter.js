// Who one is: a token, once entered, is a cookie that no script can read, and a key that no other port gets.
import { h, keepKey, post, trouble } from "./dom.js";

async function enter(token) { keepKey((await post("/api/enter", { token })).key); }

/** Takes the token from the address, where it stands after `vtax web` printed it there, and out of it. */
export async function enterFromAddress() {
  const found = /^#token=([^&]+)$/.exec(location.hash);
  if (!found) { return null; }
  history.replaceState(null, "", location.pathname);
  try {
    await enter(decodeURIComponent(found[1]));
    return null;
  } catch (error) {
    return error.message;
  }
}

/** The view that asks for a token. `then` is called when it was right. */
export function enterView(view, about, then) {
  document.title = "Enter · vtax";
  const field = h("input", { type: "password", name: "token", autocomplete: "current-password", "aria-label": "Token", required: true });
  const notice = h("div");
  const words = about.may === "nothing"
    ? "This page is for those who have its token."
    : "You can look at everything. To start runs, write notes and set budgets, enter the operator’s token: vtax web says it when it starts, or it is in the file of --token-file.";
  const form = h("form", {
    onsubmit: async (event) => {
      event.preventDefault();
      try {
        await enter(field.value);
        then();
      } catch (error) {
        notice.replaceChildren(trouble(error.message));
        field.select();
      }
    },
  }, h("div", { class: "tools" }, h("label", null, "Token ", field), h("button", { type: "submit" }, "Enter")));
  view.append(h("h1", null, "Token"), h("p", null, words), form, notice);
  field.focus();
  return () => {};
}
