// Light or dark: the system's choice unless the user made one.

import { settings } from "../store/settings";

export function followTheme(): void {
  const apply = () => {
    const { theme } = settings.get();
    if (theme === "auto") delete document.documentElement.dataset["theme"];
    else document.documentElement.dataset["theme"] = theme;
  };
  apply();
  settings.subscribe(apply);
}
