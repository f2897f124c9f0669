// Light or dark: what the system says, until a person says otherwise.

const KEY = "shoal-theme";
const system = matchMedia("(prefers-color-scheme: dark)");

class Theme {
  #chosen = $state(localStorage.getItem(KEY));
  #system = $state(system.matches);

  constructor() {
    system.addEventListener("change", () => (this.#system = system.matches));
  }

  get dark() {
    return this.#chosen ? this.#chosen === "dark" : this.#system;
  }

  toggle() {
    this.#chosen = this.dark ? "light" : "dark";
    localStorage.setItem(KEY, this.#chosen);
  }
}

export const theme = new Theme();

const motion = matchMedia("(prefers-reduced-motion: reduce)");

/** Whether things may move by themselves. */
export const calm = () => motion.matches;
