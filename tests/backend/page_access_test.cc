// Entries that a selector leaves unread: on both backends, a selector that reads all changes no bits, and which passes
// a text takes changes none either.
#include "backend/page_access.h"

#include "backend/naive_model.h"
#include "backend/page_doubles.h"
#include "sequence/crowd.h"

namespace kvasir::test {
namespace {

std::shared_ptr<LoadedModel> load_on(const std::string& backend, const std::string& path) {
  if (backend == "naive") return load_naive(path, {.page_slots = 16});
  return load(path, {.threads = backend == "cpu" ? 1 : 3, .page_slots = 16});
}

class PageAccessThreads : public ::testing::TestWithParam<std::string> {};

TEST_P(PageAccessThreads, ASelectorThatReadsAllChangesNoBits) {
  const TemporaryFile file(make_random_model(crowd_spec()));
  const auto model = load_on(GetParam(), file.path());
  Crowd world(model, all_policies_in_use(), 29);
  SomeEntries all(SomeEntries::Choice::kAll);
  world.step().set_selector(&all);
  world.run(5, 100);
  EXPECT_GT(all.read, 1000);
  EXPECT_EQ(all.unread, 0);
}

// What is unread depends on the text alone.
TEST_P(PageAccessThreads, UnreadEntriesAreThoseOfAnyPasses) {
  const TemporaryFile file(make_random_model(crowd_spec()));
  const auto model = load_on(GetParam(), file.path());
  const Text text(130, 20, 31);
  for (const std::string policy :
       {"full", "streaming:sinks=4,window=44", "h2o:budget=40,recent=10", "snapkv:budget=40,window=8"}) {
    SCOPED_TRACE(policy);
    SomeEntries some(SomeEntries::Choice::kSome);
    const auto plain = new_runner(model, policy);
    plain->step().set_selector(&some);
    const auto runner = new_runner(model, policy);
    runner->step().set_selector(&some);
    runner->set_most_rows(13);
    EXPECT_TRUE(same_bits(run_text(*runner, text, 30), run_text(*plain, text, 30)));
    EXPECT_GT(some.unread, 50);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, PageAccessThreads, ::testing::Values("cpu", "cpu_threads", "naive"),
                         [](const auto& backend) { return backend.param; });

}  // namespace
}  // namespace kvasir::test
