#include "hub/content_hash.h"

#include <fmt/core.h>
#include <sodium/crypto_hash_sha256.h>

#include <boost/uuid/detail/sha1.hpp>

namespace kvasir::hub {

struct ContentHash::State {
  bool sha256 = true;
  crypto_hash_sha256_state two{};
  boost::uuids::detail::sha1 one;
};

ContentHash::ContentHash(bool sha256, std::uint64_t size) : state_(std::make_unique<State>()) {
  state_->sha256 = sha256;
  crypto_hash_sha256_init(&state_->two);
  if (sha256) return;
  const std::string head = fmt::format("blob {}", size);
  state_->one.process_bytes(head.c_str(), head.size() + 1);
}

ContentHash::ContentHash(ContentHash&&) noexcept = default;
ContentHash& ContentHash::operator=(ContentHash&&) noexcept = default;
ContentHash::~ContentHash() = default;

void ContentHash::add(std::string_view bytes) {
  if (state_->sha256)
    crypto_hash_sha256_update(&state_->two, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  else
    state_->one.process_bytes(bytes.data(), bytes.size());
}

std::string ContentHash::hex() {
  std::string out;
  if (state_->sha256) {
    unsigned char digest[crypto_hash_sha256_BYTES];
    crypto_hash_sha256_final(&state_->two, digest);
    for (const unsigned char byte : digest) out += fmt::format("{:02x}", byte);
    return out;
  }
  boost::uuids::detail::sha1::digest_type digest;  // 5 words, or from Boost 1.86 on 20 bytes
  state_->one.get_digest(digest);
  for (const auto part : digest) out += fmt::format("{:0{}x}", part, 2 * sizeof part);
  return out;
}

}  // namespace kvasir::hub
