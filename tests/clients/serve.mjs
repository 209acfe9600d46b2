// Starts `kvasir serve` for checks in Node.js.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';

// Returns the process, with `base`, its address, and `end()`, which stops it and returns its exit code.
export async function startServer(kvasir, model, ...options) {
  const server = spawn(kvasir, ['serve', '-m', model, '--port', '0', '--name', 'm', ...options],
    { stdio: ['ignore', 'ignore', 'pipe'] });
  process.on('exit', () => server.kill('SIGKILL'));
  for await (const line of createInterface({ input: server.stderr })) {
    const found = /http:\/\/127\.0\.0\.1:(\d+)/.exec(line);
    if (found === null) continue;
    server.stderr.resume();
    server.base = `http://127.0.0.1:${found[1]}`;
    server.end = async () => {
      const ended = once(server, 'exit');
      server.kill('SIGTERM');
      return (await ended)[0];
    };
    return server;
  }
  throw new Error('the server did not start');
}
