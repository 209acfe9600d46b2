// Writes the seeds of gguf_fuzz, split_fuzz and vocabulary_fuzz into their folders below the one named on the command
// line: small files that together use all of the format, some that are wrong in one place, split files, and a tokenizer
// of each kind.
#include <cstdio>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "gguf/bytes.h"
#include "support/gguf_writer.h"

namespace kvasir::gguf {
namespace {

using test::Bytes;

struct Seed {
  std::string name;
  std::vector<std::byte> bytes;
};

Writer small_model() {
  Writer writer;
  writer.set_string("general.architecture", "llama");
  writer.set_uint32("llama.block_count", 1);
  writer.set_float32("llama.rope.freq_base", 10000.0f);
  writer.set_strings("tokenizer.ggml.tokens", {"<unk>", "<s>", "</s>", "a"});
  writer.set_float32s("tokenizer.ggml.scores", {0, 0, 0, -1});
  writer.set_int32s("tokenizer.ggml.token_type", {2, 3, 3, 1});
  writer.add_tensor("token_embd.weight", 8, {32, 4}, std::vector<std::byte>(4 * 34));
  writer.add_tensor("output_norm.weight", 0, {32}, std::vector<std::byte>(128));
  return writer;
}

std::vector<std::byte> scalars() {
  Writer writer;
  writer.set_uint8("a", 1);
  writer.set_int8("b", -1);
  writer.set_uint16("c", 1);
  writer.set_int16("d", -1);
  writer.set_uint32("e", 1);
  writer.set_int32("f", -1);
  writer.set_uint64("g", 1);
  writer.set_int64("h", -1);
  writer.set_float32("i", 0.5f);
  writer.set_float64("j", 0.5);
  writer.set_bool("k", true);
  writer.set_string("l", "text");
  return writer.finish();
}

std::vector<std::byte> foreign_types() {
  Writer writer;
  writer.add_tensor("q4_k", 12, {256, 2}, std::vector<std::byte>(288));
  writer.add_tensor("f16", 1, {2, 2, 2, 2}, std::vector<std::byte>(32));
  writer.add_tensor("i8", 24, {1}, std::vector<std::byte>(1));
  return writer.finish();
}

std::vector<Seed> seeds() {
  const auto model = small_model().finish();
  std::vector<Seed> out;
  out.push_back({"model", model});
  out.push_back({"model_cut", {model.begin(), model.end() - 200}});
  out.push_back({"scalars", scalars()});
  out.push_back({"foreign_types", foreign_types()});
  out.push_back({"empty", Bytes(3, 0, 0).exact()});
  out.push_back({"version2", Bytes(2, 1, 1).key("k", 8).string("v").tensor("t", {2}, 0, 0).pad(32).fill(8, 1).exact()});
  out.push_back({"arrays", Bytes(3, 0, 4)
                               .key("a", 9)
                               .array(10, 2)
                               .u64(1)
                               .u64(~0ull)
                               .key("b", 9)
                               .array(12, 1)
                               .u64(0x7ff0000000000000)
                               .key("c", 9)
                               .array(7, 3)
                               .u8(0)
                               .u8(1)
                               .u8(0)
                               .key("d", 9)
                               .array(3, 1)
                               .u16(0xffff)
                               .exact()});
  out.push_back({"nested", Bytes(3, 0, 1)
                               .key("n", 9)
                               .array(9, 2)
                               .array(9, 1)
                               .array(9, 1)
                               .array(5, 1)
                               .u32(7)
                               .array(8, 1)
                               .string("s")
                               .exact()});
  out.push_back(
      {"alignment",
       Bytes(3, 1, 1).key("general.alignment", 4).u32(64).tensor("t", {1}, 0, 64).pad(64).fill(68, 0).exact()});
  out.push_back({"huge_counts", Bytes(3, 1ull << 60, 1ull << 60).fill(64, 0).exact()});
  out.push_back({"key_twice", Bytes(3, 0, 2).key("k", 0).u8(1).key("k", 0).u8(2).exact()});
  out.push_back({"overlap", Bytes(3, 2, 0).tensor("a", {9}, 0, 0).tensor("b", {1}, 0, 32).pad(32).fill(64, 0).exact()});
  out.push_back({"big_endian", Bytes(0x03000000, 0, 0).exact()});
  return out;
}

std::vector<std::byte> spm_tokenizer() {
  Writer writer = small_model();
  writer.set_string("tokenizer.ggml.model", "llama");
  return writer.finish();
}

std::vector<std::byte> bpe_tokenizer(const char* pre) {
  Writer writer;
  writer.set_string("tokenizer.ggml.model", "gpt2");
  writer.set_string("tokenizer.ggml.pre", pre);
  writer.set_strings("tokenizer.ggml.tokens", {"a", "b", "ab", "\u0120", "\u0120a", "1", "<unk>", "<|im_end|>"});
  writer.set_int32s("tokenizer.ggml.token_type", {1, 1, 1, 1, 1, 4, 2, 3});
  writer.set_strings("tokenizer.ggml.merges", {"a b", "\u0120 a"});
  writer.set_uint32("tokenizer.ggml.unknown_token_id", 6);
  writer.set_uint32("tokenizer.ggml.eos_token_id", 7);
  writer.set_bool("tokenizer.ggml.add_bos_token", false);
  return writer.finish();
}

std::vector<Seed> vocabulary_seeds() {
  std::vector<Seed> out;
  out.push_back({"spm", spm_tokenizer()});
  for (const char* pre : {"llama-bpe", "falcon", "deepseek-llm"})
    out.push_back({std::string("bpe_") + pre, bpe_tokenizer(pre)});
  return out;
}

Writer part(std::uint16_t index, std::uint16_t count, std::int32_t tensors) {
  Writer writer;
  if (index == 0) writer.set_string("general.architecture", "llama");
  writer.set_uint16("split.no", index);
  writer.set_uint16("split.count", count);
  writer.set_int32("split.tensors.count", tensors);
  return writer;
}

// As split_fuzz reads it.
std::vector<std::byte> joined(const std::vector<std::vector<std::byte>>& parts) {
  Bytes lengths;
  for (std::size_t i = 0; i + 1 < parts.size(); ++i) lengths.u32(static_cast<std::uint32_t>(parts[i].size()));
  std::vector<std::byte> out = lengths.u32(0).exact();
  for (const auto& part : parts) out.insert(out.end(), part.begin(), part.end());
  return out;
}

std::vector<Seed> split_seeds() {
  const auto with = [](Writer writer, const char* tensor) {
    writer.add_tensor(tensor, 0, {3}, std::vector<std::byte>(12));
    return writer.finish();
  };
  const auto wide = Bytes(3, 1, 3)
                        .key("split.no", 4)
                        .u32(1)
                        .key("split.count", 4)
                        .u32(2)
                        .key("general.alignment", 4)
                        .u32(64)
                        .tensor("w", {1}, 0, 0)
                        .pad(64)
                        .fill(4, 0)
                        .exact();
  return {{"two", joined({with(part(0, 2, 2), "a"), with(part(1, 2, 2), "b")})},
          {"empty_first", joined({part(0, 3, 2).finish(), with(part(1, 3, 2), "a"), with(part(2, 3, 2), "b")})},
          {"other_alignment", joined({with(part(0, 2, 2), "a"), wide})},
          {"swapped", joined({with(part(1, 2, 2), "a"), with(part(0, 2, 2), "b")})},
          {"twice", joined({with(part(0, 2, 2), "a"), with(part(1, 2, 2), "a")})},
          {"one_too_few", joined({with(part(0, 2, 3), "a"), with(part(1, 2, 3), "b")})},
          {"whole", joined({small_model().finish()})}};
}

Status write_seeds(const std::string& folder, const std::vector<Seed>& all) {
  for (const Seed& seed : all) {
    const Status status = write_file(folder + "/" + seed.name + ".gguf", seed.bytes);
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace
}  // namespace kvasir::gguf

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: gguf_seeds FOLDER\n");
    return 2;
  }
  using namespace kvasir::gguf;
  const std::string folder = argv[1];
  for (const auto& status : {write_seeds(folder + "/gguf", seeds()), write_seeds(folder + "/split", split_seeds()),
                             write_seeds(folder + "/vocabulary", vocabulary_seeds())}) {
    if (status.ok()) continue;
    std::fprintf(stderr, "gguf_seeds: %s\n", status.message().c_str());
    return 1;
  }
  return 0;
}
