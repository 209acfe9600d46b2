#include "server/inspector/inspector_page.h"

#include <fmt/core.h>

#include <span>
#include <string>
#include <string_view>

#include "base/hash.h"
#include "server/inspector/inspector_assets.h"

namespace kvasir::server {
namespace {

struct Asset {
  std::string_view path;
  std::string_view type;
  std::string_view (*text)();
};

constexpr std::string_view kScript = "text/javascript; charset=utf-8";
constexpr Asset kAssets[] = {
    {"/", "text/html; charset=utf-8", index_html},
    {"/assets/inspector.css", "text/css; charset=utf-8", inspector_css},
    {"/assets/app.js", kScript, app_js},
    {"/assets/api.js", kScript, api_js},
    {"/assets/chat.js", kScript, chat_js},
    {"/assets/documents.js", kScript, documents_js},
    {"/assets/markdown.js", kScript, markdown_js},
    {"/assets/storage.js", kScript, storage_js},
    {"/assets/tokens.js", kScript, tokens_js},
    {"/assets/cache.js", kScript, cache_js},
    {"/assets/draw.js", kScript, draw_js},
    {"/assets/marked.js", kScript, marked_js},
    {"/assets/icon.svg", "image/svg+xml", icon_svg},
};

std::string etag_of(std::string_view text) {
  Hasher hasher;
  hasher.add(std::as_bytes(std::span(text)));
  return fmt::format("\"{}\"", hasher.digest().hex());
}

}  // namespace

void add_inspector_page(Router& router) {
  for (const Asset& asset : kAssets) {
    const HttpFields fields = {
        {"ETag", etag_of(asset.text())},
        {"Cache-Control", "no-cache"},  // asks each time whether the file is still the same
        {"X-Content-Type-Options", "nosniff"},
        {"Referrer-Policy", "no-referrer"},
        {"Content-Security-Policy",
         "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
    };
    const auto answer = [&asset, fields](const Exchange& exchange) {
      const bool known = exchange.request.field("if-none-match").find(fields.front().second) != std::string_view::npos;
      exchange.answer->send(known ? 304 : 200, asset.type, known ? std::string() : std::string(asset.text()), fields);
    };
    router.add("GET", asset.path, answer, Router::Access::kAll);
  }
}

}  // namespace kvasir::server
