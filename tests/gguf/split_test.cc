// Split files: the same as the whole file through any part's name; each fault is one line that names the part.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>

#include "base/mapped_file.h"
#include "base/part_name.h"
#include "bytes.h"
#include "gguf/reader.h"
#include "support/gguf_writer.h"
#include "support/shared_data.h"
#include "support/split_model.h"
#include "tiers/small_disk.h"
#include "walk.h"

namespace kvasir::gguf {
namespace {

using kvasir::test::small_model;
using kvasir::test::split_file;
using kvasir::test::TemporaryFolder;
using Parts = std::vector<std::vector<std::byte>>;

// What the writer of a part may change.
struct PartSpec {
  std::uint16_t index = 0;
  std::uint16_t count = 3;
  int announced = 3;          // tensors of all parts; below 0: not said
  std::string tensor = "t0";  // empty: none
  std::function<void(Writer&)> more = [](Writer&) {};
};

std::vector<std::byte> make_part(const PartSpec& spec) {
  Writer writer;
  writer.set_uint16("split.no", spec.index);
  writer.set_uint16("split.count", spec.count);
  if (spec.announced >= 0) writer.set_int32("split.tensors.count", spec.announced);
  spec.more(writer);
  if (!spec.tensor.empty()) writer.add_tensor(spec.tensor, 0, {3}, std::vector<std::byte>(12, std::byte{7}));
  return writer.finish();
}

void name_model(Writer& writer) {
  writer.set_string("general.architecture", "llama");
  writer.set_string("general.name", "one");
}

class Split : public ::testing::Test {
 protected:
  // Three parts with a tensor each.
  Split() {
    put(1, {0, 3, 3, "t0", name_model});
    put(2, {1, 3, 3, "t1"});
    put(3, {2, 3, 3, "t2"});
  }
  std::string stem() const { return folder_.path() + "/m"; }
  std::string path(std::uint64_t number) const { return part_path(stem(), {number, 3}); }
  void put(std::uint64_t number, const PartSpec& spec) { put(number, make_part(spec)); }
  void put(std::uint64_t number, const std::vector<std::byte>& bytes) {
    ASSERT_TRUE(write_file(path(number), bytes).ok());
  }
  // Opens through each part whose own keys are in order, with and without header_only.
  void expect_error(StatusCode code, const std::string& message,
                    const std::vector<std::uint64_t>& through = {1, 2, 3}) {
    for (const std::uint64_t number : through)
      for (const bool header_only : {false, true}) {
        const auto file = File::open(path(number), {.header_only = header_only});
        ASSERT_FALSE(file.ok()) << number;
        EXPECT_EQ(file.status().message(), message) << number;
        EXPECT_EQ(file.status().code(), code) << number;
      }
  }

  const TemporaryFolder folder_;
};

void expect_same_model(const File& file, const File& whole) {
  ASSERT_EQ(file.metadata().size(), whole.metadata().size());
  for (std::size_t i = 0; i < whole.metadata().size(); ++i) {
    EXPECT_EQ(file.metadata()[i].key, whole.metadata()[i].key);
    EXPECT_EQ(file.find(whole.metadata()[i].key), &file.metadata()[i].value);
  }
  ASSERT_EQ(file.tensors().size(), whole.tensors().size());
  for (std::size_t i = 0; i < whole.tensors().size(); ++i) {
    const Tensor& tensor = file.tensors()[i];
    const Tensor& expected = whole.tensors()[i];
    EXPECT_EQ(tensor.name, expected.name);
    EXPECT_EQ(tensor.offset, expected.offset);
    ASSERT_EQ(tensor.bytes.size(), expected.bytes.size());
    EXPECT_EQ(std::memcmp(tensor.bytes.data(), expected.bytes.data(), tensor.bytes.size()), 0) << tensor.name;
    EXPECT_EQ(file.find_tensor(expected.name), &tensor);
    file.release(tensor, 0, tensor.bytes.size());
    EXPECT_EQ(std::memcmp(tensor.bytes.data(), expected.bytes.data(), tensor.bytes.size()), 0) << tensor.name;
  }
  EXPECT_EQ(file.tensor_bytes(), whole.tensor_bytes());
  EXPECT_EQ(file.alignment(), whole.alignment());
  ASSERT_EQ(file.header_bytes().size(), whole.header_bytes().size());
  EXPECT_EQ(std::memcmp(file.header_bytes().data(), whole.header_bytes().data(), whole.header_bytes().size()), 0);
}

TEST_F(Split, ReadsAsTheWholeFileThroughAnyPart) {
  const auto whole = File::open(small_model());
  ASSERT_TRUE(whole.ok());
  EXPECT_EQ(whole->parts().size(), 1u);
  for (const auto& [count, empty_first] : {std::pair{2, false}, std::pair{5, false}, std::pair{4, true}}) {
    SCOPED_TRACE(count);
    const auto paths = split_file(small_model(), stem(), count, empty_first);
    std::uint64_t bytes = 0;
    for (const std::string& path : paths) bytes += std::filesystem::file_size(path);
    for (const std::string& path : paths) {
      const auto file = File::open(path);
      ASSERT_TRUE(file.ok()) << file.status().message();
      expect_same_model(*file, *whole);
      EXPECT_EQ(file->size_bytes(), bytes);
      ASSERT_EQ(file->parts().size(), paths.size());
      for (std::size_t i = 0; i < paths.size(); ++i) EXPECT_EQ(file->parts()[i].path, paths[i]);
      EXPECT_EQ(file->tensors().front().part, empty_first ? 1u : 0u);
      EXPECT_EQ(file->tensors().back().part, paths.size() - 1);
    }
  }
}

TEST_F(Split, HeaderOnlyOpensPartsWhoseDataIsCutOff) {
  const auto whole = File::open(small_model(), {.header_only = true});
  const auto paths = split_file(small_model(), stem(), 4, true);
  for (std::size_t i = 1; i < paths.size(); ++i) {
    std::filesystem::resize_file(paths[i], std::filesystem::file_size(paths[i]) - 100'000);
  }
  EXPECT_FALSE(File::open(paths[2]).ok());
  const auto file = File::open(paths[2], {.header_only = true});
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->tensor_bytes(), whole->tensor_bytes());
  EXPECT_TRUE(file->tensors().back().bytes.empty());
  EXPECT_EQ(file->tensors().back().offset, whole->tensors().back().offset);
}

TEST_F(Split, ATruncatedPartIsNamed) {
  const auto bytes = make_part({1, 3, 3, "t1"});
  put(2, {bytes.begin(), bytes.end() - 24});
  const std::string message = "'" + path(2) + "': the file is truncated: tensor 't1' ends at byte " +
                              std::to_string(bytes.size() - 20) + ", but the file has " +
                              std::to_string(bytes.size() - 24) + "; download it again";
  for (const std::uint64_t number : {1u, 2u, 3u}) {
    const auto file = File::open(path(number));
    ASSERT_FALSE(file.ok());
    EXPECT_EQ(file.status().message(), message);
    EXPECT_TRUE(File::open(path(number), {.header_only = true}).ok());
  }
  put(2, {bytes.begin(), bytes.begin() + 3});
  expect_error(StatusCode::kDataLoss, "'" + path(2) + "': the file is truncated: it has 3 bytes; download it again");
}

TEST_F(Split, AMissingPartIsNamedAndAllMissingAreCounted) {
  std::filesystem::remove(path(2));
  expect_error(StatusCode::kNotFound,
               "'" + path(2) + "' is missing: it is part 2 of 3 of this model; put all parts in one folder", {1, 3});
  std::filesystem::remove(path(1));
  expect_error(StatusCode::kNotFound,
               "'" + path(1) +
                   "' is missing (and 1 other): it is part 1 of 3 of this model; put all parts in one "
                   "folder",
               {3});
}

TEST_F(Split, SwappedPartsAreTold) {
  std::filesystem::rename(path(2), stem());
  std::filesystem::rename(path(3), path(2));
  std::filesystem::rename(stem(), path(3));
  const std::string end = "; give each part its own name, or download it again";
  expect_error(StatusCode::kDataLoss, "'" + path(2) + "' holds part 3 of 3 where part 2 of 3 belongs" + end, {1, 2});
  expect_error(StatusCode::kDataLoss, "'" + path(3) + "' holds part 2 of 3 where part 3 of 3 belongs" + end, {3});
}

TEST_F(Split, AForeignPartIsTold) {
  const auto belongs = [&](const std::string& what, const std::string& mend) {
    return "'" + path(2) + "' holds " + what + " where part 2 of 3 belongs; " + mend;
  };
  const auto other = [&](const std::string& what) {
    return "'" + path(2) + "' is a part of another model than '" + path(1) + "': " + what + "; download it again";
  };
  put(2, {1, 4, 3, "t1"});
  expect_error(StatusCode::kDataLoss, belongs("part 2 of 4", "give each part its own name, or download it again"));
  Writer whole;
  whole.add_tensor("t1", 0, {3}, std::vector<std::byte>(12));
  put(2, whole.finish());
  expect_error(StatusCode::kDataLoss, belongs("a whole file", "download that part again"), {1, 3});
  put(2, {1, 3, 4, "t1"});
  expect_error(StatusCode::kDataLoss, other("split.tensors.count is 4, not 3"));
  put(2, {1, 3, 3, "t1", [](Writer& w) { w.set_string("general.architecture", "qwen2"); }});
  expect_error(StatusCode::kDataLoss, other("general.architecture is 'qwen2', not 'llama'"));
  put(2, {1, 3, 3, "t1", [](Writer& w) { w.set_string("general.name", "two\n"); }});
  expect_error(StatusCode::kDataLoss, other("general.name is 'two\\x0a', not 'one'"));
  put(2, {1, 3, 3, "t2"});
  expect_error(StatusCode::kDataLoss, "'" + path(3) + "' holds tensor 't2', which '" + path(2) +
                                          "' holds too; one of them is of another model: download both again");
  put(2, {1, 3, 3, ""});
  expect_error(StatusCode::kDataLoss,
               "'" + path(1) +
                   "': the 3 parts hold 2 tensors, but split.tensors.count is 3; one of them is of another "
                   "model: download all again");
  // What says the same, or nothing, is no fault.
  put(2, {1, 3, -1, "t1", name_model});
  const auto file = File::open(path(3));
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->metadata().size(), 2u);
}

TEST_F(Split, APartUnderAnotherNameIsToldItsOwn) {
  for (const std::string name : {"model.gguf", "m-2-of-3.gguf", "m-00002-of-00003"}) {
    const std::string renamed = folder_.path() + "/" + name;
    std::filesystem::copy_file(path(2), renamed);
    const auto file = File::open(renamed, {.header_only = true});
    ASSERT_FALSE(file.ok());
    EXPECT_EQ(file.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(file.status().message(), "'" + renamed +
                                           "' is part 2 of 3 of a model, but is not named as one, so the others are "
                                           "not found; rename it to NAME-00002-of-00003.gguf");
  }
}

TEST_F(Split, KeysThatContradictThemselvesAreDamage) {
  const auto expect = [&](const std::function<void(Writer&)>& keys, const std::string& message) {
    Writer writer;
    keys(writer);
    put(2, writer.finish());
    expect_error(StatusCode::kDataLoss, "'" + path(2) + "': " + message);
  };
  expect(
      [](Writer& w) {
        w.set_uint32("split.count", 3);
        w.set_uint32("split.no", 3);
      },
      "split.no is 3, but must be below split.count, which is 3; the file is damaged");
  expect(
      [](Writer& w) {
        w.set_uint64("split.count", ~std::uint64_t{0});
        w.set_uint32("split.no", 1);
      },
      "split.count is 18446744073709551615, but a split file has at most 99999 parts; the file is damaged");
  expect([](Writer& w) { w.set_string("split.count", "3"); },
         "metadata 'split.count' is of type string, not an integer");
  expect(
      [](Writer& w) {
        w.set_uint32("split.count", 3);
        w.set_uint32("split.no", 1);
        w.set_int32("split.tensors.count", -1);
      },
      "metadata 'split.tensors.count' is -1, but must not be negative");
  Writer no_number;
  no_number.set_uint32("split.count", 3);
  put(2, no_number.finish());
  expect_error(StatusCode::kNotFound, "'" + path(2) + "': metadata 'split.no' is missing from the file");
}

// Only files that are there are opened.
TEST_F(Split, ManyAnnouncedPartsCostNothing) {
  const std::string path = part_path(stem(), {99999, 99999});
  Writer writer;
  writer.set_uint32("split.no", 99998);
  writer.set_uint32("split.count", 99999);
  ASSERT_TRUE(writer.write(path).ok());
  const auto file = File::open(path);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.status().message(), "'" + part_path(stem(), {1, 99999}) +
                                         "' is missing (and 99997 others): it is part 1 of 99999 of this model; "
                                         "put all parts in one folder");
}

TEST_F(Split, CountsOfZeroAndOneAreWholeFiles) {
  for (const std::uint16_t count : {std::uint16_t{0}, std::uint16_t{1}})
    for (const std::string& name : {part_path(stem(), {1, 1}), part_path(stem(), {2, 7}), stem()}) {
      ASSERT_TRUE(write_file(name, make_part({0, count, 1, "t"})).ok());
      const auto file = File::open(name);
      ASSERT_TRUE(file.ok()) << file.status().message();
      EXPECT_EQ(file->parts().size(), 1u);
      EXPECT_EQ(file->tensors().size(), 1u);
    }
}

// As in the hub's cache: parts are links with their names to files without. The second is reached through a folder that
// is a link itself.
TEST_F(Split, SiblingsAreThoseOfTheNameThatWasGiven) {
  namespace fs = std::filesystem;
  const fs::path blobs = folder_.path() + "/blobs";
  const fs::path snapshot = folder_.path() + "/snapshots/abc";
  fs::create_directories(blobs);
  fs::create_directories(snapshot);
  for (std::uint64_t n = 1; n <= 3; ++n) {
    fs::rename(path(n), blobs / std::to_string(n));
    fs::create_symlink("../../blobs/" + std::to_string(n), part_path((snapshot / "m").string(), {n, 3}));
  }
  fs::create_directory_symlink(snapshot, folder_.path() + "/here");
  const std::string linked = part_path(folder_.path() + "/here/m", {2, 3});
  const auto file = File::open(linked);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->tensors().size(), 3u);
  EXPECT_EQ(file->parts()[1].path, linked);
  fs::remove(blobs / "3");
  EXPECT_EQ(File::open(linked).status().message(),
            "'" + part_path(folder_.path() + "/here/m", {3, 3}) +
                "' is missing: it is part 3 of 3 of this model; put all parts in one folder");
}

TEST_F(Split, RelativePathsStayRelative) {
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder_.path());
  const auto file = File::open("m-00003-of-00003.gguf");
  const auto dotted = File::open("./m-00001-of-00003.gguf");
  std::filesystem::current_path(before);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->parts()[0].path, "m-00001-of-00003.gguf");
  ASSERT_TRUE(dotted.ok()) << dotted.status().message();
  EXPECT_EQ(dotted->parts()[2].path, "./m-00003-of-00003.gguf");
}

TEST_F(Split, APartThatIsNoFileIsNamed) {
  std::filesystem::remove(path(2));
  std::filesystem::create_directory(path(2));
  expect_error(StatusCode::kInvalidArgument, "'" + path(2) + "' is a directory; give the .gguf file in it", {1, 3});
}

TEST_F(Split, PartsInMemory) {
  const Parts all = {make_part({0, 3, 3, "", name_model}), make_part({1, 3, 3, "a"}), make_part({2, 3, 2, "b"})};
  std::vector<std::span<const std::byte>> views(all.begin(), all.end());
  EXPECT_EQ(File::parse_parts(views).status().message(),
            "part 3 is a part of another model than part 1: split.tensors.count is 2, not 3; download it again");
  EXPECT_EQ(File::parse_parts(std::span(views).first(2)).status().message(),
            "part 1 holds part 1 of 3 where part 1 of 2 belongs; give each part its own name, or download it again");
  const auto lone = File::parse(views[1]);
  EXPECT_EQ(lone.status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(lone.status().message(), "this is part 2 of 3 of a split file, of which all parts are needed");
  const Parts good = {make_part({0, 2, 1, "", name_model}), make_part({1, 2, 1, "a"})};
  views.assign(good.begin(), good.end());
  const auto file = File::parse_parts(views);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->tensors().size(), 1u);
  EXPECT_EQ(file->tensors()[0].bytes.data(), good[1].data() + good[1].size() - 32);
  views[1] = views[1].first(2);
  EXPECT_EQ(File::parse_parts(views).status().message(),
            "part 2: the file is truncated: it has 2 bytes; download it again");
}

// Two parts whose tensors, without data, are 2^63 bytes each.
TEST_F(Split, OffsetsOfAllPartsDoNotOverflow) {
  Parts parts;
  for (std::uint32_t i = 0; i < 2; ++i) {
    test::Bytes bytes(3, 1, 2);
    bytes.key("split.no", 4).u32(i).key("split.count", 4).u32(2);
    parts.push_back(bytes.tensor(i == 0 ? "a" : "b", {std::uint64_t{1} << 61}, 0, 0).exact());
  }
  const std::vector<std::span<const std::byte>> views(parts.begin(), parts.end());
  const auto file = File::parse_parts(views, {.header_only = true});
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.status().message(), "part 1: the tensors of all parts end beyond 2^64 bytes; the file is damaged");
}

}  // namespace
}  // namespace kvasir::gguf
