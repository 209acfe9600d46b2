// Bundles plotly_entry.js into vendor/plotly.min.js, headed by the licences of all that is in it. Run by build.sh.
import { build } from 'esbuild';
import { readFileSync, readdirSync, writeFileSync } from 'node:fs';

const kOut = 'vendor/plotly.min.js';

// One package's licence: its copyright lines, and the permission text, which many share.
function licenceOf(folder) {
  const pkg = JSON.parse(readFileSync(`${folder}/package.json`, 'utf8'));
  const about = { name: `${pkg.name} ${pkg.version}`, id: pkg.license, copyright: [], text: '' };
  const file = readdirSync(folder).find((name) => /^(licen[sc]e|copying)(\.|$)/i.test(name));
  if (!file) {
    const author = typeof pkg.author === 'string' ? pkg.author : pkg.author?.name;
    if (pkg.license !== 'MIT' || !author) throw new Error(`${pkg.name}: no licence file, and not plainly MIT`);
    about.copyright.push(`Copyright ${author.replace(/ <.*/, '')}`);
    return about;
  }
  const text = readFileSync(`${folder}/${file}`, 'utf8').replace(/\r/g, '');
  const isTitle = (line) => /^\s*#*\s*(the )?(mit|bsd|zlib)[\w -]* licen[sc]e/i.test(line);
  const isOwner = (line) => /^\s*copyright\b/i.test(line) || /^\s*all rights reserved/i.test(line);
  const lines = text.split('\n').filter((line) => !isTitle(line));
  about.copyright = lines.filter(isOwner).map((line) => line.trim());
  about.text = lines.filter((line) => !isOwner(line)).join('\n').trim();
  return about;
}

function licences(folders) {
  const groups = new Map();
  const key = (text) => text.toLowerCase().replace(/[^a-z]+/g, '');
  const all = folders.map(licenceOf).sort((a, b) => a.name.localeCompare(b.name));
  const mit = all.find((one) => one.id === 'MIT' && one.text).text;
  for (const one of all) {
    const text = one.text || mit;
    const group = groups.get(key(text)) ?? { text, members: [] };
    group.members.push(`${one.name} (${one.id})\n` + one.copyright.map((line) => `    ${line}`).join('\n'));
    groups.set(key(text), group);
  }
  return [...groups.values()].map((group) => `${group.members.join('\n')}\n\n${group.text}`).join(`\n\n${'-'.repeat(78)}\n\n`);
}

const result = await build({
  entryPoints: ['plotly_entry.js'],
  bundle: true,
  minify: true,
  format: 'iife',
  globalName: 'Plotly',
  target: 'es2018',
  charset: 'ascii',
  define: { global: 'window' },
  loader: { '.css': 'empty' },  // the style sheet of maps, which are not in the bundle
  legalComments: 'none',        // all licences stand in the head instead
  metafile: true,
  write: false,
});

const folders = new Set();
for (const output of Object.values(result.metafile.outputs)) {
  for (const [input, { bytesInOutput }] of Object.entries(output.inputs)) {
    const found = input.match(/^.*node_modules\/(@[^/]+\/)?[^/]+/);
    if (found && bytesInOutput > 0) folders.add(found[0]);
  }
}
const notice = licences([...folders]);
const code = result.outputFiles[0].text;
if (notice.includes('*/') || /<\/script|<!--/i.test(notice + code)) throw new Error('the bundle cannot stand in a page');
writeFileSync('vendor/LICENSES.txt', `${notice}\n`);
writeFileSync(kOut, `/*! plotly.js, lines, bars and heat maps only, with the packages and licences below.\n\n${notice}\n*/\n${code}`);
console.log(`${kOut}: ${folders.size} packages, ${Math.round(code.length / 1024)} KiB and ${Math.round(notice.length / 1024)} KiB of licences`);
