#include "server/http/local_gate.h"

#include <arpa/inet.h>
#include <fmt/core.h>

#include <algorithm>

namespace kvasir::server {
namespace {

constexpr std::size_t kMostShown = 100;

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return result;
}

// Whether the whole name is an address of 127.0.0.0/8; 127.0.0.1.example.com is not.
bool is_loopback_address(const std::string& name) {
  in_addr address{};
  return ::inet_pton(AF_INET, name.c_str(), &address) == 1 && (ntohl(address.s_addr) >> 24) == 127;
}

// `name`: with or without a port. `own_host`: a further name that counts as local.
bool is_local(std::string_view name, std::string_view own_host) {
  const bool bracketed = name.starts_with('[');
  const std::size_t end = bracketed ? name.find(']') : name.find(':');
  if (bracketed && end == std::string_view::npos) return false;
  const std::string host = lower(bracketed ? name.substr(1, end - 1) : name.substr(0, end));
  const std::string_view port =
      end == std::string_view::npos ? std::string_view() : name.substr(end + (bracketed ? 1 : 0));
  if (!port.empty() && (port.front() != ':' || port.find_first_not_of("0123456789", 1) != std::string_view::npos))
    return false;
  if (!own_host.empty() && host == lower(own_host)) return true;
  return bracketed ? host == "::1" : host == "localhost" || is_loopback_address(host);
}

bool is_local_origin(std::string_view origin, std::string_view own_host) {
  for (const std::string_view scheme : {"http://", "https://"})
    if (origin.starts_with(scheme) && is_local(origin.substr(scheme.size()), own_host)) return true;
  return false;
}

}  // namespace

bool is_allowed_origin(std::string_view origin, std::span<const std::string> allowed) {
  const auto matches = [&](const std::string& each) { return each == "*" || each == origin; };
  return !origin.empty() && (is_local_origin(origin, "") || std::ranges::any_of(allowed, matches));
}

std::optional<Refusal> LocalGate::identify(const HttpRequest& request, Caller& caller) {
  caller.sees_all = true;
  if (const std::string_view host = request.field("host"); !host.empty() && !is_local(host, host_))
    return Refusal{403,
                   fmt::format("without API keys this server answers to the names of this machine alone, not to '{}': "
                               "use http://localhost, let a proxy send 'Host: localhost', or start it with --api-keys",
                               host.substr(0, kMostShown)),
                   "foreign_host",
                   {}};
  std::string_view origin = request.field("origin");
  const bool cross_site = request.field("sec-fetch-site") == "cross-site";
  if (origin.empty() && !cross_site) return std::nullopt;
  const std::string shown(origin.empty() ? "another site" : origin.substr(0, kMostShown));
  // A browser's cross-site mark does not matter here: browsers do not let a page lie about its origin.
  if (is_local_origin(origin, host_) || is_allowed_origin(origin, origins_)) return std::nullopt;
  return Refusal{403,
                 fmt::format("without API keys this server answers no page of {}: open one on http://localhost, or "
                             "start the server with --api-keys",
                             shown),
                 "foreign_origin",
                 {}};
}

}  // namespace kvasir::server
