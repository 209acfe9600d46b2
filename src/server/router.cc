#include "server/router.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "server/api_response.h"

namespace kvasir::server {
namespace {

constexpr std::string_view kJson = "application/json";
constexpr std::string_view kParameter = "{id}";

}  // namespace

void Exchange::send_json(int http, std::string body, const HttpFields& fields) const {
  answer->send(http, kJson, std::move(body), fields);
}

void Exchange::refuse(int http, std::string_view message, std::string_view code, const HttpFields& fields) const {
  send_json(http, text_of(error_of(http, message, code)), fields);
}

void Exchange::refuse(const Status& status) const {
  send_json(http_status(status), text_of(error_of(status)));
}

void Router::add(std::string_view method, std::string_view path, RouteHandler handler, Access access) {
  Route route{std::string(method), std::string(path), path.ends_with(kParameter), access, std::move(handler)};
  if (route.parameter) route.path.resize(path.size() - kParameter.size());
  routes_.push_back(std::move(route));
}

void Router::handle(HttpRequest request, std::shared_ptr<HttpAnswer> answer) const {
  const std::string_view method = request.method == "HEAD" ? "GET" : std::string_view(request.method);
  std::string allowed;
  for (const Route& route : routes_) {
    std::string parameter;
    if (route.parameter) {
      if (!request.path.starts_with(route.path)) continue;
      parameter = request.path.substr(route.path.size());
      if (parameter.empty() || parameter.find('/') != std::string::npos) continue;
    } else if (request.path != route.path) {
      continue;
    }
    if (route.method != method) {
      allowed += (allowed.empty() ? "" : ", ") + route.method;
      continue;
    }
    Caller caller;
    if (gate_ != nullptr && route.access == Access::kCallers) {
      if (const std::optional<Refusal> refusal = gate_->check(request, caller)) {
        const Exchange exchange{std::move(request), std::move(answer), {}, {}};
        return exchange.refuse(refusal->http, refusal->message, refusal->code, refusal->fields);
      }
    }
    return route.handler({std::move(request), std::move(answer), std::move(caller), std::move(parameter)});
  }
  const Exchange exchange{std::move(request), std::move(answer), {}, {}};
  if (!allowed.empty())
    return exchange.refuse(405, fmt::format("this path takes {}", allowed), {}, {{"Allow", allowed}});
  exchange.refuse(404, "there is no such path");
}

}  // namespace kvasir::server
