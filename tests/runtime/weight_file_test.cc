// Packed weights in a file: the same bits with and without, and only for the model that they are of.
#include "runtime/weight_file.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "sequence/policy_cases.h"
#include "support/engine_fixture.h"
#include "tiers/small_disk.h"

namespace kvasir::test {
namespace {

using testing::HasSubstr;

std::vector<float> logits_of(const std::shared_ptr<LoadedModel>& model) {
  const auto runner = new_runner(model, "full");
  return all_logits(*runner, random_tokens(30, model->config.vocabulary, 1), 8);
}

std::vector<std::filesystem::path> files_in(const std::string& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files.push_back(entry.path());
  return files;
}

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void overwrite(const std::filesystem::path& path, std::size_t offset, const std::string& bytes) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(offset));
  file << bytes;
}

class WeightFileTest : public ::testing::TestWithParam<const char*> {
 protected:
  RandomModelSpec spec() const {
    RandomModelSpec spec = small_spec();
    spec.d = spec.ffn = 256;
    spec.heads = 8;
    spec.kv_heads = 4;
    spec.head_dim = 32;
    spec.dtype = GetParam();
    return spec;
  }
  const TemporaryFolder folder_;
};

TEST_P(WeightFileTest, AllEnginesGiveTheBitsOfOneThatPacksItsOwn) {
  const TemporaryFile file(make_random_model(spec()));
  const std::vector<float> own = logits_of(load(file.path(), {.threads = 2}));
  const auto first = load(file.path(), {.threads = 2, .weight_dir = folder_.path()});
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(logits_of(first), own);
  ASSERT_EQ(files_in(folder_.path()).size(), 1u);
  const std::filesystem::path packed = files_in(folder_.path())[0];
  EXPECT_EQ(std::filesystem::file_size(packed), first->weight_bytes + WeightFile::kHeaderBytes);
  const std::string before = bytes_of(packed);
  // While the first lives, and when it is gone; with other kernels too.
  for (const char* isa : {"auto", "generic"}) {
    const auto next = load(file.path(), {.threads = 1, .isa = isa, .weight_dir = folder_.path()});
    ASSERT_NE(next, nullptr);
    if (std::string(isa) == "auto") {
      EXPECT_EQ(logits_of(next), own);
    }
    EXPECT_EQ(logits_of(next), logits_of(load(file.path(), {.threads = 1, .isa = isa})));
  }
  EXPECT_EQ(files_in(folder_.path()).size(), 1u);
  EXPECT_EQ(bytes_of(packed), before);
}

TEST_P(WeightFileTest, WhatIsNotOfTheModelIsMadeAnew) {
  const TemporaryFile file(make_random_model(spec()));
  const std::vector<float> own = logits_of(load(file.path(), {.threads = 1}));
  load(file.path(), {.threads = 1, .weight_dir = folder_.path()});
  ASSERT_EQ(files_in(folder_.path()).size(), 1u);
  const std::filesystem::path packed = files_in(folder_.path())[0];
  const std::string good = bytes_of(packed);
  const auto expect_mended = [&](const char* what) {
    EXPECT_EQ(logits_of(load(file.path(), {.threads = 1, .weight_dir = folder_.path()})), own) << what;
    EXPECT_EQ(bytes_of(packed).substr(WeightFile::kHeaderBytes), good.substr(WeightFile::kHeaderBytes)) << what;
    EXPECT_EQ(files_in(folder_.path()).size(), 1u) << what;
  };
  for (std::size_t at = 0; at < 128; at += 5) {
    overwrite(packed, at, std::string(1, static_cast<char>(good[at] ^ 0x10)));
    expect_mended("a byte of the header");
  }
  for (const std::size_t size : {std::size_t{0}, std::size_t{100}, WeightFile::kHeaderBytes, good.size() - 1}) {
    std::filesystem::resize_file(packed, size);
    expect_mended("cut off");
  }
  std::filesystem::resize_file(packed, good.size() + 1);
  expect_mended("too long");
}

// Its fingerprint looks at the ends of tensors alone, so a change between them shows by the time of change.
TEST(WeightFile, AModelChangedInPlaceIsNoticed) {
  const TemporaryFolder folder;
  RandomModelSpec large = small_spec();
  large.d = 64;
  large.vocab = 2000;
  large.dtype = "f32";
  const TemporaryFile file(make_random_model(large));
  load(file.path(), {.threads = 1, .weight_dir = folder.path()});
  const std::filesystem::path packed = files_in(folder.path()).at(0);
  const std::string before = bytes_of(packed);
  // The same bytes at another time: the file is kept.
  const auto later = std::filesystem::last_write_time(file.path()) + std::chrono::seconds(5);
  std::filesystem::last_write_time(file.path(), later);
  const auto inode = [&] {
    struct stat status {};
    EXPECT_EQ(::stat(packed.c_str(), &status), 0);
    return status.st_ino;
  };
  const auto first_inode = inode();
  load(file.path(), {.threads = 1, .weight_dir = folder.path()});
  EXPECT_EQ(inode(), first_inode);
  EXPECT_EQ(bytes_of(packed).substr(WeightFile::kHeaderBytes), before.substr(WeightFile::kHeaderBytes));
  // Other bytes in the middle of the largest tensor.
  const auto parsed = gguf::File::open(file.path());
  ASSERT_TRUE(parsed.ok());
  const gguf::Tensor* embedding = parsed->find_tensor("token_embd.weight");
  ASSERT_NE(embedding, nullptr);
  ASSERT_GT(embedding->bytes.size(), std::size_t{300'000});
  const auto offset =
      static_cast<std::size_t>(embedding->bytes.data() - parsed->header_bytes().data()) + embedding->bytes.size() / 2;
  overwrite(file.path(), offset, std::string(64, '\x3e'));
  std::filesystem::last_write_time(file.path(), later + std::chrono::seconds(5));
  load(file.path(), {.threads = 1, .weight_dir = folder.path()});
  EXPECT_NE(inode(), first_inode);
  EXPECT_NE(bytes_of(packed).substr(WeightFile::kHeaderBytes), before.substr(WeightFile::kHeaderBytes));
}

INSTANTIATE_TEST_SUITE_P(Types, WeightFileTest, ::testing::Values("q8_0", "f16", "q4_k", "q5_0"));

TEST(WeightFile, AModelModifiedWhileItIsPackedLeavesNoFile) {
  const TemporaryFolder folder;
  const TemporaryFile file(make_random_model(small_spec()));
  const auto touch = [&](std::uint64_t, std::uint64_t) {
    std::filesystem::last_write_time(file.path(),
                                     std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  };
  const auto model = load_model({.model = file.path(), .threads = 1, .weight_dir = folder.path()}, touch);
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(model.status().message(), HasSubstr("modified while"));
  EXPECT_TRUE(files_in(folder.path()).empty());
}

TEST(WeightFile, WhoStartsAtOnceShares) {
  const TemporaryFolder folder;
  const TemporaryFile file(make_random_model(small_spec()));
  const std::vector<float> own = logits_of(load(file.path(), {.threads = 1}));
  // What a killed process left is no hindrance.
  load(file.path(), {.threads = 1, .weight_dir = folder.path()});
  const std::filesystem::path packed = files_in(folder.path()).at(0);
  std::filesystem::rename(packed, packed.string() + ".partial");
  std::vector<std::shared_ptr<LoadedModel>> models(4);
  std::vector<std::thread> threads;
  for (auto& model : models)
    threads.emplace_back([&] { model = load(file.path(), {.threads = 1, .weight_dir = folder.path()}); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(files_in(folder.path()), testing::ElementsAre(packed));
  struct stat status {};
  ASSERT_EQ(::stat(packed.c_str(), &status), 0);
  for (const auto& model : models) {
    ASSERT_NE(model, nullptr);
    EXPECT_EQ(logits_of(model), own);
  }
  // Each maps the file that is there: its inode is in the process's list of mappings four times.
  std::ifstream maps("/proc/self/maps");
  int mapped = 0;
  for (std::string line; std::getline(maps, line);)
    mapped += line.find(packed.filename().string()) != std::string::npos && line.find("(deleted)") == std::string::npos;
  EXPECT_EQ(mapped, 4);
}

TEST(WeightFile, AFileThatOthersMayChangeIsRefused) {
  const TemporaryFolder folder;
  const TemporaryFile file(make_random_model(small_spec()));
  load(file.path(), {.threads = 1, .weight_dir = folder.path()});
  const std::filesystem::path packed = files_in(folder.path()).at(0);
  ASSERT_EQ(::chmod(packed.c_str(), 0666), 0);
  const auto model = load_model({.model = file.path(), .threads = 1, .weight_dir = folder.path()}, {});
  ASSERT_FALSE(model.ok());
  EXPECT_THAT(model.status().message(), testing::AllOf(HasSubstr("other users"), HasSubstr(packed.string())));
  std::filesystem::remove(packed);
  std::filesystem::create_directory(packed);
  EXPECT_FALSE(load_model({.model = file.path(), .threads = 1, .weight_dir = folder.path()}, {}).ok());
}

TEST(WeightFile, LockedWeightsAreLocked) {
#ifdef KVASIR_SANITIZED
  GTEST_SKIP() << "sanitizers replace mlock by a function that does nothing";
#endif
  const auto locked = [] {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);)
      if (line.starts_with("VmLck:")) return std::stoull(line.substr(6)) * 1024;
    return 0ull;
  };
  const TemporaryFolder folder;
  const TemporaryFile file(make_random_model(small_spec()));
  for (const std::string& dir : {std::string(), folder.path()}) {
    const auto before = locked();
    const auto model = load_model({.model = file.path(), .threads = 1, .weight_dir = dir, .lock_weights = true}, {});
    if (!model.ok()) {
      EXPECT_EQ(model.status().code(), StatusCode::kResourceExhausted);
      EXPECT_THAT(model.status().message(), HasSubstr("ulimit -l"));
      GTEST_SKIP() << model.status().message();
    }
    EXPECT_GE(locked(), before + (*model)->weight_bytes);
  }
}

TEST(WeightFile, FoldersThatAreMissingAreMade) {
  const TemporaryFile file(make_random_model(small_spec()));
  const TemporaryFolder above;
  const std::string folder = above.path() + "/new/below";
  load(file.path(), {.threads = 1, .weight_dir = folder});
  EXPECT_EQ(files_in(folder).size(), 1u);
  load(file.path(), {.threads = 1, .weight_dir = folder + "/"});
  EXPECT_EQ(files_in(folder).size(), 1u);
}

TEST(WeightFile, FoldersThatWillNotDo) {
  const TemporaryFile file(make_random_model(small_spec()));
  for (const auto& [folder, what] : {std::pair{"/dev/null/below", "make the folder"},
                                     std::pair{"/dev/null", "no folder"}, std::pair{"/proc", "/proc"}}) {
    const auto model = load_model({.model = file.path(), .weight_dir = folder}, {});
    ASSERT_FALSE(model.ok()) << folder;
    EXPECT_THAT(model.status().message(), HasSubstr(what));
    EXPECT_THAT(model.status().message(), HasSubstr(folder));
  }
}

TEST(WeightFile, AFullDiskIsAnErrorThatSaysHowMuchIsNeeded) {
  const SmallDisk disk(1);
  if (!disk.mounted()) GTEST_SKIP() << "may not mount a small disk";
  RandomModelSpec large = small_spec();
  large.vocab = 20000;
  large.dtype = "f32";
  const TemporaryFile file(make_random_model(large));
  const auto model = load_model({.model = file.path(), .weight_dir = disk.path()}, {});
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(model.status().message(),
              testing::AllOf(HasSubstr("make room"), HasSubstr(disk.path()), HasSubstr("bytes")));
  EXPECT_TRUE(files_in(disk.path()).empty());
}

}  // namespace
}  // namespace kvasir::test
