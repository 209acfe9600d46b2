// What http_connection.cc reads from requests, and the heads of answers. For it alone.
// Thread-safety: pure functions.
#pragma once

#include <boost/beast/http/message.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/system/error_code.hpp>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/http_server.h"

namespace kvasir::server {

using HttpMessage = boost::beast::http::request<boost::beast::http::string_body>;

inline std::string_view view(boost::beast::string_view text) {
  return {text.data(), text.size()};
}

// Returns the path and the query of a target that names the server too, as clients of proxies send it.
std::string without_origin(std::string_view target);

// Returns whether the header gives the end of the body exactly once. If a proxy in front of this server could read it
// differently, a client could hide one request inside another (request smuggling).
bool is_framed(const HttpMessage& message);

// Whether the first line of a header that was refused ends with the name of some version of HTTP.
bool names_http_version(std::string_view head);
// What is wrong with a header that could not be read, of which `message` has the fields before the place of the error.
std::string header_problem(const boost::system::error_code& error, const HttpMessage& message);

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

// Returns an answer's status line and header. `type`: of the body; empty where there is none. `size`: of the body,
// where that has a length.
std::string answer_head(int status, std::string_view type, BodyEnd end, std::size_t size, const HttpFields& fields,
                        bool keep_alive);

}  // namespace kvasir::server
