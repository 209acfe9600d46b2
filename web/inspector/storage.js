// What the browser keeps of the page. Where storage is blocked or full, the page works without it.

// Returns what is kept under a name, or null. `area`: sessionStorage lasts as long as the tab, localStorage for good.
export function recall(name, area = 'sessionStorage') {
  try {
    return window[area].getItem(name);
  } catch {
    return null;
  }
}

// Keeps a value, or forgets what is kept, if it is empty. Returns whether that could be done.
export function remember(name, value, area = 'sessionStorage') {
  try {
    if (value) window[area].setItem(name, value);
    else window[area].removeItem(name);
    return true;
  } catch {
    return false;
  }
}

// As recall, of what was kept as JSON. Returns null if it is something else.
export function recallJson(name) {
  try {
    return JSON.parse(recall(name));
  } catch {
    return null;
  }
}
