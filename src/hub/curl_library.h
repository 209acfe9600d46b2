// libcurl, loaded when first needed: it loads some twenty libraries, which would cost other commands time and address
// space.
// Thread-safety: any thread.
#pragma once

#include <curl/curl.h>

#include "kvasir/status.h"

namespace kvasir::hub {

// Functions of libcurl, by their names without "curl_" and "easy_".
struct CurlLibrary {
  decltype(&curl_global_init) global_init = nullptr;
  decltype(&curl_easy_init) init = nullptr;
  decltype(&curl_easy_setopt) setopt = nullptr;
  decltype(&curl_easy_getinfo) getinfo = nullptr;
  decltype(&curl_easy_cleanup) cleanup = nullptr;
  decltype(&curl_easy_strerror) strerror = nullptr;
  decltype(&curl_slist_append) slist_append = nullptr;
  decltype(&curl_slist_free_all) slist_free_all = nullptr;
  decltype(&curl_multi_init) multi_init = nullptr;
  decltype(&curl_multi_cleanup) multi_cleanup = nullptr;
  decltype(&curl_multi_add_handle) multi_add_handle = nullptr;
  decltype(&curl_multi_remove_handle) multi_remove_handle = nullptr;
  decltype(&curl_multi_perform) multi_perform = nullptr;
  decltype(&curl_multi_poll) multi_poll = nullptr;
  decltype(&curl_multi_info_read) multi_info_read = nullptr;

  // Returns the library, which stays loaded. Errors: kUnsupported where the system does not have it.
  static Result<const CurlLibrary*> load();
};

}  // namespace kvasir::hub
