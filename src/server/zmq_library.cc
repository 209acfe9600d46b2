#include "server/zmq_library.h"

#include <dlfcn.h>

#include "base/status.h"

namespace kvasir::server {
namespace {

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

Result<const ZmqLibrary*> load_once() {
  static ZmqLibrary zmq;
  void* library = dlopen("libzmq.so.5", RTLD_NOW | RTLD_LOCAL);
  const char* why = library == nullptr ? dlerror() : nullptr;
  const bool complete =
      library != nullptr && find(library, "zmq_bind", zmq.bind) && find(library, "zmq_close", zmq.close) &&
      find(library, "zmq_ctx_new", zmq.ctx_new) && find(library, "zmq_ctx_term", zmq.ctx_term) &&
      find(library, "zmq_errno", zmq.error_number) && find(library, "zmq_getsockopt", zmq.getsockopt) &&
      find(library, "zmq_msg_close", zmq.msg_close) && find(library, "zmq_msg_data", zmq.msg_data) &&
      find(library, "zmq_msg_init", zmq.msg_init) && find(library, "zmq_msg_init_data", zmq.msg_init_data) &&
      find(library, "zmq_msg_more", zmq.msg_more) && find(library, "zmq_msg_recv", zmq.msg_recv) &&
      find(library, "zmq_msg_send", zmq.msg_send) && find(library, "zmq_msg_size", zmq.msg_size) &&
      find(library, "zmq_poll", zmq.poll) && find(library, "zmq_send", zmq.send) &&
      find(library, "zmq_setsockopt", zmq.setsockopt) && find(library, "zmq_socket", zmq.socket) &&
      find(library, "zmq_strerror", zmq.error_text);
  if (complete) return &zmq;
  return make_status(StatusCode::kUnsupported, "KV events need ZeroMQ 4 ({}); install the package libzmq5",
                     why != nullptr ? why : "libzmq.so.5 is another version");
}

}  // namespace

Result<const ZmqLibrary*> ZmqLibrary::load() {
  static const Result<const ZmqLibrary*> zmq = load_once();
  return zmq;
}

}  // namespace kvasir::server
