#include "server/http/http_message.h"

#include <fmt/chrono.h>
#include <fmt/core.h>

#include <boost/beast/http/error.hpp>
#include <boost/beast/http/rfc7230.hpp>
#include <ctime>
#include <iterator>
#include <utility>

namespace kvasir::server {

namespace beast = boost::beast;
namespace http = beast::http;

namespace {

constexpr std::string_view kWrongVersion = "the HTTP version must be 1.0 or 1.1";

// Returns path and query of a target, without the server's name that clients of proxies add.
std::string without_origin(std::string_view target) {
  if (!target.starts_with("http://") && !target.starts_with("https://")) return std::string(target);
  const std::size_t rest = target.find_first_of("/?", target.find("//") + 2);
  if (rest == std::string_view::npos) return "/";
  return (target[rest] == '?' ? "/" : "") + std::string(target.substr(rest));
}

// Returns whether the header gives the end of the body exactly once. If a proxy in front of this server could read it
// differently, a client could hide one request inside another (request smuggling).
bool is_framed(const HttpMessage& message) {
  const auto codings = message.count(http::field::transfer_encoding);
  if (codings == 0) return true;
  return codings == 1 && message.version() == 11 && message.count(http::field::content_length) == 0 &&
         beast::iequals(message[http::field::transfer_encoding], "chunked");
}

// Whether the first line of a refused header ends with the name of any version of HTTP.
bool names_http_version(std::string_view head) {
  const std::string_view line = head.substr(0, head.find("\r\n"));
  constexpr std::string_view kName = " HTTP/";
  const std::size_t at = line.rfind(kName);
  if (at == std::string_view::npos || line.size() != at + kName.size() + 3) return false;
  const std::string_view version = line.substr(at + kName.size());
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  return is_digit(version[0]) && version[1] == '.' && is_digit(version[2]);
}

std::string header_problem(const boost::system::error_code& error, const HttpMessage& message) {
  const bool length = error == http::error::bad_content_length || error == http::error::multiple_content_length;
  const bool coding = error == http::error::bad_transfer_encoding;
  if (!length && !coding) return "this is not HTTP/1.1";
  if (message.count(length ? http::field::transfer_encoding : http::field::content_length) > 0)
    return "the header has both 'Content-Length' and 'Transfer-Encoding'; send one of them";
  if (message.count(length ? http::field::content_length : http::field::transfer_encoding) > 0)
    return fmt::format("the header has '{}' more than once; send one", length ? "Content-Length" : "Transfer-Encoding");
  if (coding) return "'Transfer-Encoding' must be 'chunked'";
  return "'Content-Length' must be a whole number, the body's bytes";
}

}  // namespace

HttpRefusal body_too_large(const HttpLimits& limits) {
  return {413, fmt::format("the body has more than {} bytes; send less", limits.body_bytes)};
}

std::optional<HttpRefusal> header_refusal(const HttpMessage& message, std::optional<std::uint64_t> body_bytes,
                                          const HttpLimits& limits) {
  if (std::distance(message.begin(), message.end()) > limits.header_fields)
    return {{431, fmt::format("the header has more than {} fields; send fewer", limits.header_fields)}};
  if (message.version() < 10 || message.version() > 11) return {{505, std::string(kWrongVersion)}};
  if (message.version() == 11 && message.count(http::field::host) != 1)
    return {{400, "a request has one field 'Host'"}};
  if (!is_framed(message))
    return {{400, "the length of the body is given by one 'Content-Length' or by 'Transfer-Encoding: chunked'"}};
  if (body_bytes && *body_bytes > limits.body_bytes)
    return {
        {413, fmt::format("the body of {} bytes is larger than the {} accepted here", *body_bytes, limits.body_bytes)}};
  return {};
}

HttpRefusal header_refusal(const boost::system::error_code& error, const HttpMessage& message, std::string_view head,
                           const HttpLimits& limits) {
  if (error == http::error::header_limit || error == http::error::buffer_overflow)
    return {431, fmt::format("the header has more than {} bytes; send less", limits.header_bytes)};
  if (error == http::error::body_limit) return body_too_large(limits);
  if (error == http::error::bad_version && names_http_version(head)) return {505, std::string(kWrongVersion)};
  return {400, header_problem(error, message)};
}

HttpRequest request_of(const HttpMessage& message) {
  HttpRequest request;
  request.method = view(message.method_string());
  const std::string target = without_origin(view(message.target()));
  const std::size_t query = target.find('?');
  request.path = target.substr(0, query);
  if (query != std::string::npos) request.query = target.substr(query + 1);
  for (const auto& field : message) {
    std::string name(view(field.name_string()));
    for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    request.fields.emplace_back(std::move(name), view(field.value()));
  }
  return request;
}

std::string error_body(std::string_view message, std::string_view type, std::string_view code) {
  return fmt::format(R"({{"error":{{"message":"{}","type":"{}","param":null,"code":{}}}}})", message, type,
                     code.empty() ? "null" : fmt::format("\"{}\"", code));
}

std::string answer_head(int status, std::string_view type, BodyEnd end, std::size_t size, const HttpFields& fields,
                        bool keep_alive) {
  std::string text =
      fmt::format("HTTP/1.1 {} {}\r\nServer: kvasir\r\nDate: {:%a, %d %b %Y %H:%M:%S} GMT\r\n", status,
                  view(http::obsolete_reason(static_cast<http::status>(status))), fmt::gmtime(std::time(nullptr)));
  if (!type.empty()) text += fmt::format("Content-Type: {}\r\n", type);
  // A 204 has no length. The length of a 304 would be that of the corresponding 200.
  if (end == BodyEnd::kLength && status != 304 && status != 204) text += fmt::format("Content-Length: {}\r\n", size);
  if (end == BodyEnd::kChunks) text += "Transfer-Encoding: chunked\r\n";
  for (const auto& [name, value] : fields) text += fmt::format("{}: {}\r\n", name, value);
  return text + (keep_alive ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n");
}

}  // namespace kvasir::server
