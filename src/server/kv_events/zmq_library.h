// libzmq, loaded when it is first needed: it depends on a dozen libraries, which should cost other commands neither
// time nor address space.
// Thread-safety: any thread.
#pragma once

#include <zmq.h>

#include "kvasir/status.h"

namespace kvasir::server {

// Functions of libzmq, named without "zmq_"; error_number and error_text are zmq_errno and zmq_strerror.
struct ZmqLibrary {
  decltype(&zmq_bind) bind = nullptr;
  decltype(&zmq_close) close = nullptr;
  decltype(&zmq_ctx_new) ctx_new = nullptr;
  decltype(&zmq_ctx_term) ctx_term = nullptr;
  decltype(&zmq_errno) error_number = nullptr;
  decltype(&zmq_getsockopt) getsockopt = nullptr;
  decltype(&zmq_msg_close) msg_close = nullptr;
  decltype(&zmq_msg_data) msg_data = nullptr;
  decltype(&zmq_msg_init) msg_init = nullptr;
  decltype(&zmq_msg_init_data) msg_init_data = nullptr;
  decltype(&zmq_msg_more) msg_more = nullptr;
  decltype(&zmq_msg_recv) msg_recv = nullptr;
  decltype(&zmq_msg_send) msg_send = nullptr;
  decltype(&zmq_msg_size) msg_size = nullptr;
  decltype(&zmq_poll) poll = nullptr;
  decltype(&zmq_send) send = nullptr;
  decltype(&zmq_setsockopt) setsockopt = nullptr;
  decltype(&zmq_socket) socket = nullptr;
  decltype(&zmq_strerror) error_text = nullptr;

  // Returns the library, which stays loaded. Errors: kUnsupported if the system does not have it.
  static Result<const ZmqLibrary*> load();
};

}  // namespace kvasir::server
