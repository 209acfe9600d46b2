// Pages that come late, and pages that are left unread: on both backends, bits do not depend on when pages come, nor on
// a selector that reads all of them.
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

// Every policy in one crowd: partials of resident pages are computed first, those of late ones when they have come. One
// that read a late page too early would hold a NaN.
TEST_P(PageAccessThreads, LatePagesChangeNoBits) {
  const TemporaryFile file(make_random_model(crowd_spec()));
  const auto model = load_on(GetParam(), file.path());
  for (const std::size_t crowd : {std::size_t{1}, std::size_t{5}}) {
    Crowd world(model, all_policies_in_use(), 23 + crowd);
    LatePages late(world.store(), model->kv_shape.page.bytes(), model->config.governed_layers());
    world.step().set_pages(&late, nullptr);
    world.run(crowd, 100);
    if (HasFatalFailure()) return;
    EXPECT_GT(late.events.leases, 200);
    EXPECT_GT(late.events.waits, 100);
    EXPECT_GT(late.events.late, 300);
    EXPECT_EQ(late.events.never_waited, 0);
    if (GetParam() != "naive") {
      EXPECT_GT(late.events.asked_early, 100);
      EXPECT_GT(late.events.asked_late, 100);
    }
  }
}

TEST_P(PageAccessThreads, ASelectorThatReadsAllChangesNoBits) {
  const TemporaryFile file(make_random_model(crowd_spec()));
  const auto model = load_on(GetParam(), file.path());
  Crowd world(model, all_policies_in_use(), 29);
  SomeEntries all(SomeEntries::Choice::kAll);
  world.step().set_pages(nullptr, &all);
  world.run(5, 100);
  EXPECT_GT(all.read, 1000);
  EXPECT_EQ(all.unread, 0);
}

// Late pages and unread entries together. What is unread depends on the text alone, so that passes change nothing.
TEST_P(PageAccessThreads, LatePagesAndUnreadEntries) {
  const TemporaryFile file(make_random_model(crowd_spec()));
  const auto model = load_on(GetParam(), file.path());
  const Text text(130, 20, 31);
  for (const std::string policy :
       {"full", "streaming:sinks=4,window=44", "h2o:budget=40,recent=10", "snapkv:budget=40,window=8"}) {
    SCOPED_TRACE(policy);
    SomeEntries some(SomeEntries::Choice::kSome);
    const auto plain = new_runner(model, policy);
    plain->step().set_pages(nullptr, &some);
    const auto runner = new_runner(model, policy);
    LatePages late(model->store_of(*runner->whole().cache()), model->kv_shape.page.bytes(), model->config.governed_layers());
    runner->step().set_pages(&late, &some);
    runner->set_most_rows(13);
    EXPECT_TRUE(same_bits(run_text(*runner, text, 30), run_text(*plain, text, 30)));
    EXPECT_GT(late.events.late, 50);
    EXPECT_GT(some.unread, 50);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, PageAccessThreads, ::testing::Values("cpu", "cpu_threads", "naive"),
                         [](const auto& backend) { return backend.param; });

}  // namespace
}  // namespace kvasir::test
