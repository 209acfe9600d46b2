#include "server/http/router.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/status.h"
#include "server/api/api_response.h"
#include "server/http/local_gate.h"

namespace kvasir::server {
namespace {

constexpr std::string_view kJson = "application/json";
constexpr std::string_view kParameter = "{id}";
constexpr std::string_view kPath = "{path}";

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

// Returns a segment of a path without percent escapes; "" for one that is malformed or has a NUL.
std::string decoded(std::string_view segment) {
  std::string text;
  for (std::size_t i = 0; i < segment.size(); ++i) {
    char c = segment[i];
    if (c == '%') {
      const int high = i + 2 < segment.size() ? hex_value(segment[i + 1]) : -1;
      const int low = high >= 0 ? hex_value(segment[i + 2]) : -1;
      if (low < 0) return {};
      c = static_cast<char>(high * 16 + low);
      i += 2;
    }
    if (c == '\0') return {};
    text += c;
  }
  return text;
}

std::string error_body(ErrorForm form, const ErrorText& error) {
  return form != nullptr ? form(error) : text_of(error_of(error));
}

void send(HttpAnswer& answer, const Refusal& refusal, ErrorForm form = nullptr) {
  answer.send(refusal.http, kJson, error_body(form, {refusal.http, refusal.message, refusal.code, {}}), refusal.fields);
}

Refusal operators_only() {
  return {403,
          "this is about all tenants, so it needs an operator's key: make one with 'kvasir keys add --tenant NAME "
          "--operator' (/metrics alone can be opened to anybody, with 'kvasir serve --metrics-open')",
          "operator_key_required",
          {}};
}

std::string no_path(std::string_view path) {
  const bool readable = std::ranges::all_of(path, [](char c) { return c > ' ' && c <= '~'; });
  return fmt::format(
      "there is no path '{:.100}' here; chats are answered at /v1/chat/completions, texts at /v1/completions, "
      "and /v1/models names the model",
      readable ? path : "...");
}

}  // namespace

void Exchange::send_json(int http, std::string body, const HttpFields& fields) const {
  answer->send(http, kJson, std::move(body), fields);
}

void Exchange::refuse(int http, std::string_view message, std::string_view code, const HttpFields& fields) const {
  refuse({http, std::string(message), std::string(code), {}}, fields);
}

void Exchange::refuse(const Status& status) const {
  refuse(error_text(status));
}

void Exchange::refuse(const ErrorText& error, const HttpFields& fields) const {
  send_json(error.http, error_body(error_form, error), fields);
}

void Router::add(std::string_view method, std::string_view path, RouteHandler handler, Access access,
                 ErrorForm error_form) {
  const bool slashes = path.ends_with(kPath);
  const bool parameter = slashes || path.ends_with(kParameter);
  if (parameter) path.remove_suffix(slashes ? kPath.size() : kParameter.size());
  Route route{std::string(method), std::string(path), parameter, slashes, access, std::move(handler), error_form};
  routes_.push_back(std::move(route));
}

Router::Match Router::match(const HttpRequest& request) const {
  const std::string_view method = request.method == "HEAD" ? "GET" : std::string_view(request.method);
  std::string allowed;
  ErrorForm form = nullptr;
  for (const auto& [prefix, given] : forms_)
    if (request.path.starts_with(prefix)) form = given;
  for (const Route& route : routes_) {
    std::string parameter;
    if (route.parameter) {
      if (!request.path.starts_with(route.path)) continue;
      const std::string_view segment = std::string_view(request.path).substr(route.path.size());
      if (!route.slashes && segment.find('/') != std::string_view::npos) continue;
      parameter = decoded(segment);
      if (parameter.empty()) continue;
    } else if (request.path != route.path) {
      continue;
    }
    if (route.method == method) return {&route, std::move(parameter), {}, route.error_form};
    if (route.error_form != nullptr) form = route.error_form;
    allowed += (allowed.empty() ? "" : ", ") + route.method;
  }
  if (allowed.empty()) return {nullptr, {}, {404, no_path(request.path), {}, {}}, form};
  return {nullptr, {}, {405, fmt::format("this path takes {}", allowed), {}, {{"Allow", allowed}}}, form};
}

bool Router::share(const HttpRequest& request, HttpAnswer& answer) const {
  const std::string_view origin = request.field("origin");
  if (!is_allowed_origin(origin, origins_)) return false;
  const bool any = std::ranges::find(origins_, "*") != origins_.end();
  answer.add_fields({{"Access-Control-Allow-Origin", any ? "*" : std::string(origin)},
                     {"Access-Control-Expose-Headers", "X-Request-Id, Retry-After, X-Kvasir-Ignored"},
                     {"Vary", "Origin"}});
  return true;
}

void Router::handle(HttpRequest request, std::shared_ptr<HttpAnswer> answer) const {
  const bool shared = share(request, *answer);
  // A browser asks (CORS preflight) before it sends a request with a key or a JSON body.
  if (shared && request.method == "OPTIONS" && !request.field("access-control-request-method").empty()) {
    const std::string_view fields = request.field("access-control-request-headers");
    HttpFields allowed = {{"Access-Control-Allow-Methods", "GET, POST, DELETE"}, {"Access-Control-Max-Age", "600"}};
    if (!fields.empty()) allowed.emplace_back("Access-Control-Allow-Headers", fields);
    return answer->send(204, "", "", allowed);
  }
  Match found = match(request);
  if (found.route == nullptr) return send(*answer, found.refusal, found.error_form);
  Caller caller;
  caller.sees_all = gate_ == nullptr;
  if (gate_ != nullptr && found.route->access != Access::kAll) {
    if (const std::optional<Refusal> refusal = gate_->check(request, caller))
      return send(*answer, *refusal, found.route->error_form);
    if (found.route->access == Access::kOperators && !caller.sees_all)
      return send(*answer, operators_only(), found.route->error_form);
  }
  found.route->handler(
      {std::move(request), std::move(answer), std::move(caller), std::move(found.parameter), found.route->error_form});
}

std::optional<std::string> Router::admit(const HttpRequest& request, HttpAnswer& answer) const {
  share(request, answer);
  const Match found = match(request);
  std::optional<Refusal> refusal;
  Caller caller;
  if (found.route == nullptr) {
    refusal = found.refusal;
  } else if (gate_ != nullptr && found.route->access != Access::kAll) {
    refusal = gate_->identify(request, caller);
  }
  if (!refusal) return caller.tenant.empty() ? request.address : caller.tenant;
  send(answer, *refusal, found.error_form);
  return std::nullopt;
}

Result<std::string> query_parameter(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::size_t end = query.find('&');
    const std::string_view pair = query.substr(0, end);
    if (pair.size() > name.size() && pair.starts_with(name) && pair[name.size()] == '=') {
      const std::string_view escaped = pair.substr(name.size() + 1);
      std::string value = decoded(escaped);
      if (!value.empty() || escaped.empty()) return value;
      return invalid_argument("'{}' in the query has a malformed percent escape", name).about({name});
    }
    query = end == std::string_view::npos ? std::string_view() : query.substr(end + 1);
  }
  return std::string();
}

}  // namespace kvasir::server
