// The gate of a server without API keys, which serves only this machine: it refuses requests of other sites' pages that
// are open in a browser on this machine.
//
// Such a page reaches the server under its own name (a name that resolves to 127.0.0.1), or from its own origin. So
// Host and Origin of a request, where given, must be localhost, an address of 127.0.0.0/8, [::1] or the address that
// the server listens on, with any port. Requests that a browser marks as sent by another site are refused too. The
// refusal is a 403 that says how to mend it.
//
// Thread-safety: const after construction.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/router.h"

namespace kvasir::server {

// Returns whether pages of an origin may use the server: those of this machine (http or https, localhost, 127.0.0.0/8
// or [::1], any port), and those of the list, in which "*" stands for all. An empty origin is not allowed.
bool is_allowed_origin(std::string_view origin, std::span<const std::string> allowed);

class LocalGate final : public Gate {
 public:
  // `host`: the address that the server listens on. `origins`: of further pages that pass, or "*" for all.
  explicit LocalGate(std::string host, std::vector<std::string> origins = {})
      : host_(std::move(host)), origins_(std::move(origins)) {}

  std::optional<Refusal> identify(const HttpRequest& request, Caller& caller) override;

 private:
  std::string host_;
  std::vector<std::string> origins_;
};

}  // namespace kvasir::server
