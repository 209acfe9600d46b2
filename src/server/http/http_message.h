// Checks request messages and writes heads of answers. Only for http_connection.cc.
// Thread-safety: pure functions.
#pragma once

#include <boost/beast/http/message.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/system/error_code.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/http_server.h"

namespace kvasir::server {

using HttpMessage = boost::beast::http::request<boost::beast::http::string_body>;

inline std::string_view view(boost::beast::string_view text) {
  return {text.data(), text.size()};
}

// The refusal of a request before any handler sees it.
struct HttpRefusal {
  int status = 0;
  std::string message;
  std::string_view code = {};
};

// The refusal of a body without a stated length that exceeds HttpLimits::body_bytes.
HttpRefusal body_too_large(const HttpLimits& limits);
// Returns the refusal of a header that was read; nullopt if it is acceptable. `body_bytes`: its Content-Length, if it
// has one.
std::optional<HttpRefusal> header_refusal(const HttpMessage& message, std::optional<std::uint64_t> body_bytes,
                                          const HttpLimits& limits);
// Returns the refusal of an unreadable header. `message`: the fields before the error. `head`: the bytes received.
HttpRefusal header_refusal(const boost::system::error_code& error, const HttpMessage& message, std::string_view head,
                           const HttpLimits& limits);

// Returns the request of a message without its body; HttpRequest::address is empty.
HttpRequest request_of(const HttpMessage& message);

// Returns the type of an error in the body of an answer with this status.
constexpr std::string_view error_type(int status) {
  return status < 500 || status == 505 ? "invalid_request_error" : "server_error";
}
// Returns an error in the API's form. The texts need no escapes.
std::string error_body(std::string_view message, std::string_view type, std::string_view code = {});

// How an answer's body ends.
enum class BodyEnd { kLength, kChunks, kConnection };

// Returns an answer's status line and header. `type`: of the body; empty without one. `size`: of the body, if `end` is
// kLength.
std::string answer_head(int status, std::string_view type, BodyEnd end, std::size_t size, const HttpFields& fields,
                        bool keep_alive);

}  // namespace kvasir::server
