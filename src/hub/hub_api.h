// Reads the answers of the hub's API, JSON and headers, as untrusted input.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/status.h"

namespace kvasir::hub {

// A file of a repository.
struct HubFile {
  std::string path;        // checked with is_safe_path
  std::uint64_t size = 0;  // bytes
  std::string oid;         // lower case hex: SHA-256 of the content, or git's SHA-1 of it
  bool is_sha256 = false;
};

// Returns the commit in the answer about a revision. Errors: kDataLoss.
Result<std::string> parse_commit(std::string_view json);

// Appends the GGUF files of one page of a listing; skips other files. Errors: kDataLoss for anything malformed, and for
// names of GGUF files that would escape their folder.
Status parse_tree(std::string_view json, std::vector<HubFile>& files);

// Returns the address of the next page in a Link header; "" if there is none.
std::string next_page(std::string_view link);

// Returns an ETag without W/ and quotes.
std::string plain_etag(std::string_view etag);

// Escapes all characters but letters, digits, '-', '.', '_', '~' and, if `keep_slashes`, '/'.
std::string url_escaped(std::string_view text, bool keep_slashes);

// Returns scheme://host[:port] of an address, in lower case; "" unless it is http or https without a user name.
std::string origin_of(std::string_view url);

}  // namespace kvasir::hub
