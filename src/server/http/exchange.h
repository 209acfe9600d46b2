// One request with its answer, on its way through the server.
// Thread-safety: the I/O thread's alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "server/http/error_text.h"
#include "server/http/http_server.h"

namespace kvasir {
class Status;
}

namespace kvasir::server {

// The sender of a request. Without API keys all requests have the same caller, whose name is empty.
struct Caller {
  std::string tenant;     // name
  std::string key_id;     // names the API key within the tenant; no part of the key
  int tenant_number = 0;  // of the engine's tenants: RequestOptions::tenant
  std::string salt;       // salt of the prefix cache; clients neither choose nor know it
  int priority = 0;       // added to the request's; less runs earlier
  // Whether the caller may read figures of the whole server, which cover other tenants too.
  bool sees_all = false;
  // Counts the request as running while it lives. May be null; may be dropped on any thread.
  std::shared_ptr<const void> hold;
};

struct Exchange {
  HttpRequest request;
  std::shared_ptr<HttpAnswer> answer;
  Caller caller;
  std::string parameter;           // text in place of "{id}" or "{path}" in the route's path, percent-decoded
  ErrorForm error_form = nullptr;  // of the route's API; null: OpenAI's
  HttpFields fields = {};          // that a good answer made by answer_on() has besides

  void send_json(int http, std::string body, const HttpFields& fields = {}) const;
  // Sends an error in the form of the route's API.
  void refuse(int http, std::string_view message, std::string_view code = {}, const HttpFields& fields = {}) const;
  void refuse(const Status& status) const;
  void refuse(const ErrorText& error, const HttpFields& fields = {}) const;
};

}  // namespace kvasir::server
