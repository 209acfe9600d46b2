// Opens split files: finds the parts, checks that they belong together and joins them.
#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <new>
#include <system_error>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/counted.h"
#include "base/part_name.h"
#include "base/status.h"
#include "gguf/cursor.h"
#include "gguf/file_impl.h"
#include "gguf/reader.h"

namespace kvasir::gguf {
namespace {

constexpr std::string_view kCountKey = "split.count";
constexpr std::string_view kIndexKey = "split.no";
constexpr std::string_view kTensorsKey = "split.tensors.count";

// The keys that identify a part.
struct SplitKeys {
  PartPlace place;
  std::optional<std::uint64_t> tensors;  // of all parts
};

// Returns nullopt if the file is whole.
Result<std::optional<SplitKeys>> read_split_keys(const File& file) {
  std::optional<SplitKeys> keys;
  if (file.find(kCountKey) == nullptr) return keys;
  KVASIR_ASSIGN_OR_RETURN(const std::uint64_t count, file.get_uint(kCountKey));
  if (count <= 1) return keys;
  if (count > kMostParts)
    return data_loss("{} is {}, but a split file has at most {} parts; the file is damaged", kCountKey, count,
                     kMostParts);
  KVASIR_ASSIGN_OR_RETURN(const std::uint64_t index, file.get_uint(kIndexKey));
  if (index >= count)
    return data_loss("{} is {}, but must be below {}, which is {}; the file is damaged", kIndexKey, index, kCountKey,
                     count);
  keys = SplitKeys{{index + 1, count}, {}};
  if (file.find(kTensorsKey) != nullptr) {
    KVASIR_ASSIGN_OR_RETURN(keys->tensors, file.get_uint(kTensorsKey));
  }
  return keys;
}

// Returns a part's name in messages: its path, or its number if it is in memory.
std::string name_of(const Part& part, std::size_t index) {
  return part.path.empty() ? fmt::format("part {}", index + 1) : fmt::format("'{}'", part.path);
}

Status about(const std::string& name, const Status& status) {
  return make_status(status.code(), "{}: {}", name, status.message());
}

// Checks that a file is the part that belongs in `place`.
Status check_place(const std::string& name, const std::optional<SplitKeys>& keys, const PartPlace& place) {
  if (!keys)
    return data_loss("{} holds a whole file where part {} of {} belongs; download that part again", name, place.number,
                     place.count);
  if (keys->place == place) return {};
  return data_loss(
      "{} holds part {} of {} where part {} of {} belongs; give each part its own name, or download it "
      "again",
      name, keys->place.number, keys->place.count, place.number, place.count);
}

// Looks for all parts at once, so that one message says how many are missing.
Status check_present(const PartName& name) {
  std::string first;
  std::uint64_t number = 0;
  std::uint64_t missing = 0;
  for (std::uint64_t n = 1; n <= name.place.count; ++n) {
    const std::string path = part_path(name.stem, {n, name.place.count});
    std::error_code unknown;
    if (std::filesystem::exists(path, unknown) || unknown) continue;
    if (++missing > 1) continue;
    first = path;
    number = n;
  }
  if (missing == 0) return {};
  const std::string others =
      missing > 1 ? fmt::format(" (and {})", counted(static_cast<std::int64_t>(missing - 1), "other")) : std::string();
  return make_status(StatusCode::kNotFound,
                     "'{}' is missing{}: it is part {} of {} of this model; put all parts in one folder", first, others,
                     number, name.place.count);
}

const std::string_view* text_of(const File& file, std::string_view key) {
  const Value* value = file.find(key);
  return value == nullptr ? nullptr : std::get_if<std::string_view>(&value->data);
}

// Checks that a part's model keys, if any, are those of the first part. Most parts have none.
Status check_same_model(const File& part, const File& first, const std::string& name, const std::string& first_name) {
  for (const std::string_view key : {std::string_view("general.architecture"), std::string_view("general.name")}) {
    const std::string_view* own = text_of(part, key);
    const std::string_view* expected = text_of(first, key);
    if (own == nullptr || expected == nullptr || *own == *expected) continue;
    return data_loss("{} is a part of another model than {}: {} is {}, not {}; download it again", name, first_name,
                     key, quoted(*own), quoted(*expected));
  }
  return {};
}

// Checks that each file is the part of its place, and that all are of one model. Sets the number of tensors that the
// first part announces.
Status check_parts(const std::vector<File>& parts, const std::vector<std::string>& names,
                   std::optional<std::uint64_t>* tensors) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto keys = read_split_keys(parts[i]);
    if (!keys.ok()) return about(names[i], keys.status());
    KVASIR_RETURN_IF_ERROR(check_place(names[i], *keys, {i + 1, parts.size()}));
    KVASIR_RETURN_IF_ERROR(check_same_model(parts[i], parts[0], names[i], names[0]));
    const auto& announced = (*keys)->tensors;
    if (i == 0) *tensors = announced;
    if (announced && *tensors && *announced != **tensors)
      return data_loss("{} is a part of another model than {}: {} is {}, not {}; download it again", names[i], names[0],
                       kTensorsKey, *announced, **tensors);
  }
  return {};
}

void add_tensors(std::vector<Tensor> tensors, std::uint32_t part, std::vector<Tensor>* all) {
  for (Tensor& tensor : tensors) {
    tensor.part = part;
    all->push_back(std::move(tensor));
  }
}

// Sorts the tensors of all parts by name. Checks that names are unique and that the number is the announced one.
Status check_tensors(Contents* contents, const std::vector<std::string>& names,
                     const std::optional<std::uint64_t>& expected) {
  const auto& all = contents->tensors;
  const std::size_t twice = sort_by_name(all, &contents->tensors_by_name, [](const Tensor& t) { return t.name; });
  if (twice < all.size()) {
    const auto same = [&](const Tensor& tensor) { return tensor.name == all[twice].name; };
    const auto first = std::find_if(all.begin(), all.end(), same);
    const auto second = std::find_if(first + 1, all.end(), same);
    return data_loss("{} holds tensor {}, which {} holds too; one of them is of another model: download both again",
                     names[second->part], quoted(second->name), names[first->part]);
  }
  if (expected && *expected != all.size())
    return data_loss(
        "{}: the {} parts hold {} tensors, but {} is {}; one of them is of another model: download all again", names[0],
        names.size(), all.size(), kTensorsKey, *expected);
  return {};
}

bool is_split_key(std::string_view key) {
  return key == kCountKey || key == kIndexKey || key == kTensorsKey;
}

// Drops the keys that say how the file was split.
void drop_split_keys(Contents* contents) {
  std::vector<Entry> kept;
  std::vector<std::span<const std::byte>> bytes;
  for (std::size_t i = 0; i < contents->metadata.size(); ++i) {
    if (is_split_key(contents->metadata[i].key)) continue;
    kept.push_back(std::move(contents->metadata[i]));
    bytes.push_back(contents->entry_bytes[i]);
  }
  contents->metadata = std::move(kept);
  contents->entry_bytes = std::move(bytes);
  sort_by_name(contents->metadata, &contents->metadata_by_key, [](const Entry& e) { return e.key; });
}

// Returns the header of the whole file and sets the tensors' offsets in it; nullopt if they overflow.
std::optional<std::vector<std::byte>> lay_out(Contents* contents) {
  constexpr std::uint32_t kVersion = 3;
  std::vector<std::byte> out;
  ByteWriter writer(&out);
  const std::string_view magic = "GGUF";
  writer.put_values(std::span<const char>(magic.data(), magic.size()));
  writer.put(kVersion);
  writer.put(static_cast<std::uint64_t>(contents->tensors.size()));
  writer.put(static_cast<std::uint64_t>(contents->metadata.size()));
  for (const auto& bytes : contents->entry_bytes) writer.put_values(bytes);
  const std::uint64_t mask = contents->alignment - 1;
  std::uint64_t offset = 0;
  contents->tensor_bytes = 0;
  for (Tensor& tensor : contents->tensors) {
    writer.put_string(tensor.name);
    writer.put(static_cast<std::uint32_t>(tensor.dims.size()));
    writer.put_values(std::span<const std::uint64_t>(tensor.dims));
    writer.put(tensor.type);
    writer.put(offset);
    tensor.offset = offset;
    const std::uint64_t bytes = data_bytes(tensor);
    if (__builtin_add_overflow(offset, bytes, &offset) || offset + mask < offset) return std::nullopt;
    contents->tensor_bytes += bytes;
    offset = (offset + mask) & ~mask;
  }
  if (offset + out.size() + mask < offset) return std::nullopt;
  if (!contents->tensors.empty()) out.resize((out.size() + mask) & ~mask);
  for (Tensor& tensor : contents->tensors) tensor.offset += out.size();
  return out;
}

}  // namespace

Result<File> File::open(const std::string& path, const OpenOptions& options) {
  KVASIR_ASSIGN_OR_RETURN(File given, open_one(path, options));
  const std::string given_name = fmt::format("'{}'", path);
  const auto keys = read_split_keys(given);
  if (!keys.ok()) return about(given_name, keys.status());
  if (!*keys) return given;
  const auto name = parse_part_name(path);
  const PartPlace& place = (*keys)->place;
  if (!name)
    return invalid_argument(
        "{} is part {} of {} of a model, but is not named as one, so the others are not found; rename it to {}",
        given_name, place.number, place.count, part_path("NAME", place));
  KVASIR_RETURN_IF_ERROR(check_place(given_name, *keys, name->place));
  KVASIR_RETURN_IF_ERROR(check_present(*name));
  std::vector<File> parts;
  for (std::uint64_t n = 1; n <= place.count; ++n) {
    if (n == place.number) {
      parts.push_back(std::move(given));
      continue;
    }
    KVASIR_ASSIGN_OR_RETURN(File part, open_one(part_path(name->stem, {n, place.count}), options));
    parts.push_back(std::move(part));
  }
  return join(std::move(parts));
}

Result<File> File::parse(std::span<const std::byte> bytes, const OpenOptions& options) {
  KVASIR_ASSIGN_OR_RETURN(File file, parse_one(bytes, options));
  KVASIR_ASSIGN_OR_RETURN(const auto keys, read_split_keys(file));
  if (keys)
    return unsupported("this is part {} of {} of a split file, of which all parts are needed", keys->place.number,
                       keys->place.count);
  return file;
}

Result<File> File::parse_parts(std::span<const std::span<const std::byte>> parts, const OpenOptions& options) {
  std::vector<File> files;
  for (const auto& bytes : parts) {
    auto file = parse_one(bytes, options);
    if (!file.ok()) return about(fmt::format("part {}", files.size() + 1), file.status());
    files.push_back(std::move(*file));
  }
  return join(std::move(files));
}

Result<File> File::join(std::vector<File> parts) try {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < parts.size(); ++i) names.push_back(name_of(parts[i].parts().front(), i));
  std::optional<std::uint64_t> tensors_expected;
  KVASIR_RETURN_IF_ERROR(check_parts(parts, names, &tensors_expected));
  auto whole = std::make_unique<Impl>();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Impl& part = *parts[i].impl_;
    for (MappedFile& mapping : part.mappings) whole->mappings.push_back(std::move(mapping));
    whole->parts.push_back(std::move(part.parts.front()));
    if (i == 0)
      whole->contents = std::move(part.contents);
    else
      add_tensors(std::move(part.contents.tensors), static_cast<std::uint32_t>(i), &whole->contents.tensors);
  }
  KVASIR_RETURN_IF_ERROR(check_tensors(&whole->contents, names, tensors_expected));
  drop_split_keys(&whole->contents);
  auto header = lay_out(&whole->contents);
  if (!header) return data_loss("{}: the tensors of all parts end beyond 2^64 bytes; the file is damaged", names[0]);
  whole->joined_header = std::move(*header);
  return File(std::move(whole));
} catch (const std::bad_alloc&) {
  return exhausted("not enough memory for the metadata of a GGUF file in {} parts", parts.size());
}

}  // namespace kvasir::gguf
