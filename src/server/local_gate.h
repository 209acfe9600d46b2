// The gate of a server without API keys, which is for this machine alone: it refuses what a page of another site, open
// in a browser on this machine, sends.
//
// Such a page reaches the server under its own name (a name that resolves to 127.0.0.1), or from its own origin. So a
// request passes only if its Host is localhost, an address of 127.0.0.0/8, [::1] or the address that the server listens
// on, on any port, and so does its Origin where it has one. What a browser marks as sent by another site is refused
// too. The refusal is a 403 that says how to mend it.
//
// Thread-safety: const after construction.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "server/router.h"

namespace kvasir::server {

class LocalGate final : public Gate {
 public:
  // `host`: the address that the server listens on.
  explicit LocalGate(std::string host) : host_(std::move(host)) {}

  std::optional<Refusal> identify(const HttpRequest& request, Caller& caller) override;

 private:
  bool is_local(std::string_view name) const;

  std::string host_;
};

}  // namespace kvasir::server
