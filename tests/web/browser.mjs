// Finds Chromium and playwright-core, or ends with exit status 77: skipped.
// playwright-core is looked for in this folder's node_modules and NODE_PATH; Chromium in KVASIR_CHROMIUM and PATH.
import { accessSync, constants } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

function skip(reason) {
  console.log(`skipped: ${reason}`);
  process.exit(77);
}

export function findPlaywright() {
  const here = path.dirname(fileURLToPath(import.meta.url));
  for (const folder of [here, ...(process.env.NODE_PATH ?? '').split(':').filter(Boolean)]) {
    try {
      return createRequire(path.join(folder, 'x.js'))('playwright-core');
    } catch (error) {
      if (error.code !== 'MODULE_NOT_FOUND') throw error;
    }
  }
  return skip('playwright-core is not installed (npm ci --ignore-scripts in tests/web)');
}

export function findChromium() {
  const names = ['chromium', 'chromium-browser', 'google-chrome'];
  const inPath = (process.env.PATH ?? '').split(':').flatMap((folder) => names.map((name) => path.join(folder, name)));
  for (const file of [process.env.KVASIR_CHROMIUM, ...inPath].filter(Boolean)) {
    try {
      accessSync(file, constants.X_OK);
      return file;
    } catch { /* the next */ }
  }
  return skip('no Chromium found');
}

// Options of launch(): without these Chromium asks for updates, and waits for a network that may be closed.
export function launchOptions(executablePath) {
  const quiet = ['background-networking', 'component-update', 'sync', 'gpu', 'quic'].map((each) => `--disable-${each}`);
  return { executablePath, args: [...quiet, '--no-first-run', ...(process.getuid() === 0 ? ['--no-sandbox'] : [])] };
}
