// Finds the route that answers a path.
// Thread-safety: the I/O thread's alone, once routes were added.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/http/exchange.h"

namespace kvasir::server {

using RouteHandler = std::function<void(Exchange)>;

// An error answer in place of the requested one.
struct Refusal {
  int http = 0;
  std::string message;
  std::string code;
  HttpFields fields;
};

// Identifies the caller of a request, or refuses it. Neither function needs the request's body.
class Gate {
 public:
  virtual ~Gate() = default;
  // Fills in `caller`, except its hold. Returns a refusal for a request that may not pass.
  virtual std::optional<Refusal> identify(const HttpRequest& request, Caller& caller) = 0;
  // Does the same, and counts the request against the caller's limits.
  virtual std::optional<Refusal> check(const HttpRequest& request, Caller& caller) { return identify(request, caller); }
};

// Returns the value of a query's parameter without percent escapes; "" if it is absent. Errors: kInvalidArgument, about
// the parameter, for a malformed escape and for one of a NUL. REQUIRES: `name` is a string literal.
Result<std::string> query_parameter(std::string_view query, std::string_view name);

class Router {
 public:
  // Who may use a route.
  enum class Access {
    kAll,        // anybody: health checks and pages without data
    kCallers,    // callers that the gate lets pass
    kOperators,  // callers that may see the whole server
  };

  // `gate` must outlive the router. Null: everybody passes, and may see the whole server. `origins`: of pages whose
  // scripts may read answers (CORS), such as "https://chat.example.com", or "*" for all; pages of this machine always
  // may.
  explicit Router(Gate* gate = nullptr, std::vector<std::string> origins = {})
      : gate_(gate), origins_(std::move(origins)) {}

  // `path` is literal, except for a last segment "{id}", which stands for any text without '/', percent-decoded, or
  // "{path}", which stands for any text. HEAD is answered as GET.
  // `error_form`: of the refusals of the gate and of the handler; null: OpenAI's.
  void add(std::string_view method, std::string_view path, RouteHandler handler, Access access = Access::kCallers,
           ErrorForm error_form = nullptr);

  // Sets the form of refusals of paths below `prefix` that no route answers, and of methods that they do not take.
  void set_error_form(std::string_view prefix, ErrorForm form) { forms_.emplace_back(prefix, form); }

  void handle(HttpRequest request, std::shared_ptr<HttpAnswer> answer) const;

  // Decides, before a request's body is read, whether it may be sent; see HttpServer::Admit. Counts nothing against the
  // caller's limits.
  std::optional<std::string> admit(const HttpRequest& request, HttpAnswer& answer) const;

 private:
  struct Route {
    std::string method;
    std::string path;  // without "{id}" or "{path}"
    bool parameter = false;
    bool slashes = false;  // the parameter may contain '/'
    Access access = Access::kCallers;
    RouteHandler handler;
    ErrorForm error_form = nullptr;
  };

  struct Match {
    const Route* route = nullptr;  // null: `refusal` says why
    std::string parameter;
    Refusal refusal;
    ErrorForm error_form = nullptr;
  };
  Match match(const HttpRequest& request) const;

  // Lets the page that sent the request read its answer, if it may. Returns whether it may.
  bool share(const HttpRequest& request, HttpAnswer& answer) const;

  Gate* gate_;
  std::vector<std::string> origins_;
  std::vector<Route> routes_;
  std::vector<std::pair<std::string, ErrorForm>> forms_;
};

}  // namespace kvasir::server
