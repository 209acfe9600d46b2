#include "hub/curl_library.h"

#include "base/shared_library.h"
#include "base/status.h"

namespace kvasir::hub {
namespace {

Result<const CurlLibrary*> load_curl_once() {
  static CurlLibrary curl;
  SharedLibrary library("libcurl.so.4");
  library.bind("curl_global_init", curl.global_init)
      .bind("curl_easy_init", curl.init)
      .bind("curl_easy_setopt", curl.setopt)
      .bind("curl_easy_getinfo", curl.getinfo)
      .bind("curl_easy_cleanup", curl.cleanup)
      .bind("curl_easy_strerror", curl.strerror)
      .bind("curl_slist_append", curl.slist_append)
      .bind("curl_slist_free_all", curl.slist_free_all)
      .bind("curl_multi_init", curl.multi_init)
      .bind("curl_multi_cleanup", curl.multi_cleanup)
      .bind("curl_multi_add_handle", curl.multi_add_handle)
      .bind("curl_multi_remove_handle", curl.multi_remove_handle)
      .bind("curl_multi_perform", curl.multi_perform)
      .bind("curl_multi_poll", curl.multi_poll)
      .bind("curl_multi_info_read", curl.multi_info_read);
  if (library.error().empty() && curl.global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK) return &curl;
  return make_status(StatusCode::kUnsupported,
                     "fetching a model needs libcurl 7.85 or newer ({}); install the package libcurl4",
                     library.error().empty() ? "it does not start" : library.error());
}

}  // namespace

Result<const CurlLibrary*> CurlLibrary::load() {
  static const Result<const CurlLibrary*> curl = load_curl_once();
  return curl;
}

}  // namespace kvasir::hub
