#include "tenants/secrets.h"

#include <sodium.h>

#include "base/check.h"

namespace kvasir::tenants {
namespace {

// Initialises libsodium once. It fails only where the system has no random generator.
void need_sodium() {
  static const int state = sodium_init();
  KVASIR_CHECK(state >= 0);
}

}  // namespace

Digest random_secret() {
  need_sodium();
  Digest secret{};
  randombytes_buf(secret.data(), secret.size());
  return secret;
}

std::string random_api_key() {
  return "kvasir_" + digest_text(random_secret());
}

std::string random_id() {
  const Digest random = random_secret();
  char hex[9];
  sodium_bin2hex(hex, sizeof hex, random.data(), 4);
  return hex;
}

Digest keyed_hash(const Digest& secret, std::string_view purpose, std::string_view text) {
  need_sodium();
  const auto bytes = [](std::string_view of) { return reinterpret_cast<const unsigned char*>(of.data()); };
  constexpr unsigned char kEnd = 0;  // keeps a purpose and its text apart
  crypto_generichash_state state;
  crypto_generichash_init(&state, secret.data(), secret.size(), Digest().size());
  crypto_generichash_update(&state, bytes(purpose), purpose.size());
  crypto_generichash_update(&state, &kEnd, 1);
  crypto_generichash_update(&state, bytes(text), text.size());
  Digest digest{};
  crypto_generichash_final(&state, digest.data(), digest.size());
  return digest;
}

bool equal_in_constant_time(const Digest& a, const Digest& b) {
  return sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string digest_text(const Digest& digest) {
  char text[sodium_base64_ENCODED_LEN(32, sodium_base64_VARIANT_URLSAFE_NO_PADDING)];
  sodium_bin2base64(text, sizeof text, digest.data(), digest.size(), sodium_base64_VARIANT_URLSAFE_NO_PADDING);
  return text;
}

std::optional<Digest> digest_from_text(std::string_view text) {
  Digest digest{};
  std::size_t size = 0;
  const char* end = nullptr;
  if (sodium_base642bin(digest.data(), digest.size(), text.data(), text.size(), nullptr, &size, &end,
                        sodium_base64_VARIANT_URLSAFE_NO_PADDING) != 0)
    return std::nullopt;
  if (size != digest.size() || end != text.data() + text.size()) return std::nullopt;
  return digest;
}

}  // namespace kvasir::tenants
