// A model in parts: the bits of the whole file, and its fingerprint, so what is stored for one serves the other.
#include "support/split_model.h"

#include <sys/stat.h>

#include <chrono>
#include <filesystem>

#include "sequence/policy_cases.h"
#include "support/engine_fixture.h"
#include "support/families.h"
#include "tiers/small_disk.h"

namespace kvasir::test {
namespace {

namespace fs = std::filesystem;

std::vector<float> logits_of_text(const std::shared_ptr<LoadedModel>& model) {
  const auto runner = new_runner(model, "full");
  return all_logits(*runner, random_tokens(30, model->config.vocabulary, 1), 8);
}

TEST(SplitModel, EveryFamilyHasTheBitsAndTheFingerprintOfTheWholeFile) {
  for (const FamilyCase& family : family_cases(small_spec())) {
    for (const bool tied : {false, true}) {
      RandomModelSpec spec = family.spec;
      spec.tied = tied;
      SCOPED_TRACE(family.name + (tied ? " tied" : ""));
      const TemporaryFolder folder;
      const TemporaryFile file(make_random_model(spec));
      const auto parts = split_file(file.path(), folder.path() + "/m", 5, true);
      const auto opened = gguf::File::open(parts[0]);
      ASSERT_TRUE(opened.ok()) << opened.status().message();
      const gguf::Tensor* output = opened->find_tensor("output.weight");
      ASSERT_TRUE(tied || output != nullptr);
      if (output != nullptr) {
        EXPECT_NE(output->part, opened->find_tensor("token_embd.weight")->part);
      }
      const auto whole = load(file.path(), {.threads = 1});
      const auto split = load(parts[4], {.threads = 1});
      ASSERT_NE(split, nullptr);
      EXPECT_EQ(split->fingerprint, whole->fingerprint);
      EXPECT_EQ(split->weight_bytes, whole->weight_bytes);
      EXPECT_EQ(logits_of_text(split), logits_of_text(whole));
    }
  }
}

class SplitWeights : public ::testing::Test {
 protected:
  // Of the largest tensor most bytes are in no fingerprint.
  static RandomModelSpec spec() {
    RandomModelSpec spec = small_spec();
    spec.d = 64;
    spec.vocab = 2000;
    return spec;
  }
  SplitWeights() : file_(make_random_model(spec())), parts_(split_file(file_.path(), models_.path() + "/m", 3)) {}
  std::shared_ptr<LoadedModel> open(const std::string& path) {
    return load(path, {.threads = 1, .weight_dir = packed_.path()});
  }
  // Of the only file there.
  ino_t inode() const {
    const std::vector<fs::directory_entry> files(fs::directory_iterator(packed_.path()), {});
    EXPECT_EQ(files.size(), 1u);
    struct stat status {};
    EXPECT_EQ(::stat(files.at(0).path().c_str(), &status), 0);
    return status.st_ino;
  }
  void age(const std::string& path, int hours) {
    fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(hours));
  }

  const TemporaryFolder models_;
  const TemporaryFolder packed_;
  const TemporaryFile file_;
  const std::vector<std::string> parts_;
};

TEST_F(SplitWeights, PartsAndWholeFileShareThem) {
  const std::vector<float> own = logits_of_text(load(file_.path(), {.threads = 1}));
  open(file_.path());
  const ino_t first = inode();
  EXPECT_EQ(logits_of_text(open(parts_[1])), own);
  EXPECT_EQ(inode(), first);
}

// It is as large as before, and still not the newest.
TEST_F(SplitWeights, AChangedPartIsNoticed) {
  const auto opened = gguf::File::open(parts_[0]);
  ASSERT_TRUE(opened.ok());
  const gguf::Tensor* embedding = opened->find_tensor("token_embd.weight");
  ASSERT_GT(embedding->bytes.size(), std::size_t{300'000});
  const std::string& changed = parts_[embedding->part];
  const std::string& newest = parts_[embedding->part == 0 ? 1 : 0];
  for (const std::string& part : parts_) age(part, part == newest ? 1 : 3);
  open(parts_[0]);
  const ino_t first = inode();
  open(parts_[2]);
  EXPECT_EQ(inode(), first);
  auto bytes = read_file(changed, std::size_t{1} << 30);
  ASSERT_TRUE(bytes.ok());
  const std::string_view tensor(reinterpret_cast<const char*>(embedding->bytes.data()), embedding->bytes.size());
  bytes->replace(bytes->find(tensor) + tensor.size() / 2, 64, 64, '\x3e');
  const Hash128 fingerprint = load(parts_[0], {.threads = 1})->fingerprint;
  ASSERT_TRUE(write_file(changed, std::as_bytes(std::span(*bytes))).ok());
  age(changed, 2);
  const auto model = load(parts_[0], {.threads = 1});
  EXPECT_EQ(model->fingerprint, fingerprint);
  EXPECT_EQ(logits_of_text(open(parts_[0])), logits_of_text(model));
  EXPECT_NE(inode(), first);
}

TEST_F(SplitWeights, APartModifiedWhileItIsPackedIsNamed) {
  const auto touch = [&](std::uint64_t, std::uint64_t) { age(parts_[2], 5); };
  const auto model = load_model({.model = parts_[0], .threads = 1, .weight_dir = packed_.path()}, touch);
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.status().message(),
            "'" + parts_[2] + "' was modified while its weights were packed; start again once it is complete");
  EXPECT_TRUE(fs::is_empty(packed_.path()));
}

}  // namespace
}  // namespace kvasir::test
