// Says by what nginx chooses a replica: requests whose texts begin alike have equal keys. Runs in nginx's njs (0.7).
//
// The key of a request is, beside the caller's Authorization:
//   its header X-Prefix-Key, if it has one: the client knows best;
//   the name of its session: its file is on one replica;
//   of a chat, what its system messages and its first user message begin with, so that all turns of a conversation
//   have one key, and conversations that share a system prompt spread over the replicas;
//   of a completion, what its prompt begins with.
// "Begins" means the first 2,048 characters: a long document with different questions behind it has one key.

const kCharacters = 2048;
const kLongestParsed = 1 << 20;  // a longer body is compared as it stands

export default { route };

function beginning(value) {
  return (typeof value === 'string' ? value : JSON.stringify(value) || '').slice(0, kCharacters);
}

function textKey(body) {
  const parts = [body.model, body.cache_salt];
  if (Array.isArray(body.messages)) {
    for (let i = 0; i < body.messages.length; i++) {
      const message = body.messages[i] || {};
      parts.push(message.role, beginning(message.content));
      if (message.role === 'user') break;
    }
  } else {
    parts.push(beginning(body.prompt));
  }
  return JSON.stringify(parts);
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch (e) {
    return undefined;  // the replica says what is wrong with it
  }
}

function bodyOf(r) {
  try {
    return r.requestText || '';
  } catch (e) {
    return '';  // it is longer than client_body_buffer_size
  }
}

function route(r) {
  let key = r.headersIn['X-Prefix-Key'];
  let session = r.uri.startsWith('/v1/sessions/') ? r.uri.slice('/v1/sessions/'.length) : '';
  if (!key && !session) {
    const text = bodyOf(r);
    const body = text.length <= kLongestParsed ? parsed(text) : undefined;
    if (body && typeof body === 'object') {
      if (typeof body.session === 'string') session = body.session;
      key = textKey(body);
    } else {
      key = text.slice(0, kCharacters);
    }
  }
  r.variables.kvasir_key = (r.headersIn.Authorization || '') + '\n' + (session ? 'session ' + session : key);
  // A session must not move to another replica, which does not have it.
  r.internalRedirect(session ? '@session' : '@replica');
}
