// 128-bit hashes of bytes (XXH3-128): checksums and fingerprints, not protection against forgery.
// Thread-safety: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace kvasir {

struct Hash128 {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  bool operator==(const Hash128&) const = default;
  std::string hex() const;  // 32 digits
};

// Returns the XXH3-64 of bytes.
std::uint64_t hash64(std::span<const std::byte> bytes, std::uint64_t seed = 0);

// Hashes bytes that come in parts: the result depends on their concatenation alone.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;

  void add(std::span<const std::byte> bytes);
  Hash128 digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvasir
