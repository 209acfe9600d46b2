// The hashes by which the hub names content.
// Thread-safety: values; one caller at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace kvasir::hub {

class ContentHash {
 public:
  // SHA-256 of the content, or git's SHA-1 of content of `size` bytes.
  ContentHash(bool sha256, std::uint64_t size);
  ContentHash(ContentHash&&) noexcept;
  ContentHash& operator=(ContentHash&&) noexcept;
  ~ContentHash();

  void add(std::string_view bytes);
  std::string hex();  // lower case. Call it once, at the end

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvasir::hub
