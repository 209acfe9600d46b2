#include "server/kv_events/zmq_library.h"

#include "base/shared_library.h"
#include "base/status.h"

namespace kvasir::server {
namespace {

Result<const ZmqLibrary*> load_zmq_once() {
  static ZmqLibrary zmq;
  SharedLibrary library("libzmq.so.5");
  library.bind("zmq_bind", zmq.bind)
      .bind("zmq_close", zmq.close)
      .bind("zmq_ctx_new", zmq.ctx_new)
      .bind("zmq_ctx_term", zmq.ctx_term)
      .bind("zmq_errno", zmq.error_number)
      .bind("zmq_getsockopt", zmq.getsockopt)
      .bind("zmq_msg_close", zmq.msg_close)
      .bind("zmq_msg_data", zmq.msg_data)
      .bind("zmq_msg_init", zmq.msg_init)
      .bind("zmq_msg_init_data", zmq.msg_init_data)
      .bind("zmq_msg_more", zmq.msg_more)
      .bind("zmq_msg_recv", zmq.msg_recv)
      .bind("zmq_msg_send", zmq.msg_send)
      .bind("zmq_msg_size", zmq.msg_size)
      .bind("zmq_poll", zmq.poll)
      .bind("zmq_send", zmq.send)
      .bind("zmq_setsockopt", zmq.setsockopt)
      .bind("zmq_socket", zmq.socket)
      .bind("zmq_strerror", zmq.error_text);
  if (library.error().empty()) return &zmq;
  return make_status(StatusCode::kUnsupported, "KV events need ZeroMQ 4 ({}); install the package libzmq5",
                     library.error());
}

}  // namespace

Result<const ZmqLibrary*> ZmqLibrary::load() {
  static const Result<const ZmqLibrary*> zmq = load_zmq_once();
  return zmq;
}

}  // namespace kvasir::server
