// One request with its answer, on the way through the server.
// Thread-safety: the I/O thread's alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "server/http/http_server.h"

namespace kvasir {
class Status;
}

namespace kvasir::server {

// Who asks. Without API keys everybody is the same caller, whose name is empty.
struct Caller {
  std::string tenant;     // name
  int tenant_number = 0;  // of the engine's tenants: RequestOptions::tenant
  std::string salt;       // of the prefix cache, which no client can choose or know
  int priority = 0;       // added to that of the request; less runs earlier
  // Whether the caller may read figures of the whole server, which cover other tenants too.
  bool sees_all = false;
  // Counts the request as running while it lives. May be null; may be dropped on any thread.
  std::shared_ptr<const void> hold;
};

struct Exchange {
  HttpRequest request;
  std::shared_ptr<HttpAnswer> answer;
  Caller caller;
  std::string parameter;  // what stood in place of "{id}" in the route's path, percent-decoded

  void send_json(int http, std::string body, const HttpFields& fields = {}) const;
  // Sends an error in the API's form.
  void refuse(int http, std::string_view message, std::string_view code = {}, const HttpFields& fields = {}) const;
  void refuse(const Status& status) const;
};

}  // namespace kvasir::server
