#include "hub/curl_library.h"

#include <dlfcn.h>

#include "base/status.h"

namespace kvasir::hub {
namespace {

template <class Function>
bool find_symbol(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

Result<const CurlLibrary*> load_curl_once() {
  static CurlLibrary curl;
  void* library = dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);
  const char* why = library == nullptr ? dlerror() : nullptr;
  const bool complete = library != nullptr && find_symbol(library, "curl_global_init", curl.global_init) &&
                        find_symbol(library, "curl_easy_init", curl.init) &&
                        find_symbol(library, "curl_easy_setopt", curl.setopt) &&
                        find_symbol(library, "curl_easy_getinfo", curl.getinfo) &&
                        find_symbol(library, "curl_easy_cleanup", curl.cleanup) &&
                        find_symbol(library, "curl_easy_strerror", curl.strerror) &&
                        find_symbol(library, "curl_slist_append", curl.slist_append) &&
                        find_symbol(library, "curl_slist_free_all", curl.slist_free_all) &&
                        find_symbol(library, "curl_multi_init", curl.multi_init) &&
                        find_symbol(library, "curl_multi_cleanup", curl.multi_cleanup) &&
                        find_symbol(library, "curl_multi_add_handle", curl.multi_add_handle) &&
                        find_symbol(library, "curl_multi_remove_handle", curl.multi_remove_handle) &&
                        find_symbol(library, "curl_multi_perform", curl.multi_perform) &&
                        find_symbol(library, "curl_multi_poll", curl.multi_poll) &&
                        find_symbol(library, "curl_multi_info_read", curl.multi_info_read);
  if (complete && curl.global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK) return &curl;
  return make_status(StatusCode::kUnsupported,
                     "fetching a model needs libcurl 7.85 or newer ({}); install the package "
                     "libcurl4",
                     why != nullptr ? why : "libcurl.so.4 is another version");
}

}  // namespace

Result<const CurlLibrary*> CurlLibrary::load() {
  static const Result<const CurlLibrary*> curl = load_curl_once();
  return curl;
}

}  // namespace kvasir::hub
