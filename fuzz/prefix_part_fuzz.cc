// Stored parts of prefixes, from a file or a server: refused, or exactly those of the text that was asked for.
//
// The first byte of an input says what is mended before it is read: bit 0 the checksum, bit 1 the size. The rest is the
// part. With KVASIR_WRITE_SEEDS=FOLDER the program writes a sound part and ends.
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "base/check.h"
#include "prefix/prefix_part.h"

namespace {

using namespace kvasir;

struct World {
  PartShape shape;
  std::vector<TokenId> text;
  BlobKey key;
  std::vector<std::byte> sound;
};

const World& world() {
  static const World made = [] {
    World w;
    PageFormat format;
    format.head_dim = 2;
    format.slots = 16;
    w.shape = part_shape("model", format, 1);
    for (TokenId i = 0; i < w.shape.tokens(); ++i) w.text.push_back(i * 37 % 300);
    w.key = part_key(w.shape, "salt", w.text, 0);
    w.sound.resize(w.shape.bytes(0));
    for (std::byte& byte : begin_part(w.shape, w.key, w.text, 0, w.sound)) byte = std::byte{42};
    seal_part(w.sound);
    return w;
  }();
  return made;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  if (const char* folder = std::getenv("KVASIR_WRITE_SEEDS")) {
    for (int mended = 0; mended < 4; ++mended) {
      std::ofstream out(std::string(folder) + "/sound-" + std::to_string(mended), std::ios::binary);
      out.put(static_cast<char>(mended));
      out.write(reinterpret_cast<const char*>(world().sound.data()),
                static_cast<std::streamsize>(world().sound.size()));
    }
    std::_Exit(0);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const World& w = world();
  const std::span<const std::byte> input = std::as_bytes(std::span(data, size)).subspan(1);
  std::vector<std::byte> bytes(input.begin(), input.end());
  if ((data[0] & 2) != 0) bytes.resize(w.sound.size());
  if ((data[0] & 1) != 0 && bytes.size() >= 16) seal_part(bytes);
  const auto pages = read_part(w.shape, w.key, w.text, bytes);
  if (!pages.ok()) return 0;
  KVASIR_CHECK(pages->size() == w.shape.pages_bytes());
  const std::size_t before = static_cast<std::size_t>(pages->data() - bytes.data());
  KVASIR_CHECK(std::memcmp(bytes.data(), w.sound.data(), before) == 0);
  return 0;
}
