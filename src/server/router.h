// Finds what answers a path.
// Thread-safety: the I/O thread's alone, once routes were added.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/exchange.h"

namespace kvasir::server {

using RouteHandler = std::function<void(Exchange)>;

// An answer of another kind than the one that was asked for.
struct Refusal {
  int http = 0;
  std::string message;
  std::string code;
  HttpFields fields;
};

// Says who asks, or why the request is refused.
class Gate {
 public:
  virtual ~Gate() = default;
  // Fills in `caller`. Returns a refusal for a request that may not pass.
  virtual std::optional<Refusal> check(const HttpRequest& request, Caller& caller) = 0;
};

class Router {
 public:
  // Who may use a route.
  enum class Access {
    kAll,      // anybody: health checks and pages without data
    kCallers,  // whoever the gate lets pass
  };

  // `gate` may be null: then everybody passes. Must outlive the router.
  explicit Router(Gate* gate = nullptr) : gate_(gate) {}

  // `path` is taken literally, but for a last segment "{id}", which stands for any text without '/'. HEAD is answered
  // as GET.
  void add(std::string_view method, std::string_view path, RouteHandler handler, Access access = Access::kCallers);

  void handle(HttpRequest request, std::shared_ptr<HttpAnswer> answer) const;

 private:
  struct Route {
    std::string method;
    std::string path;  // without "{id}"
    bool parameter = false;
    Access access = Access::kCallers;
    RouteHandler handler;
  };

  Gate* gate_;
  std::vector<Route> routes_;
};

}  // namespace kvasir::server
