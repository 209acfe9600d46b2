// The order of requests in a queue, and how far one of them has come.
#include <gtest/gtest.h>

#include "requests/request_group.h"

namespace kvasir::test {
namespace {

std::unique_ptr<RequestGroup> group_of(std::uint64_t id, int priority, int samples = 1) {
  auto group = std::make_unique<RequestGroup>();
  group->id = RequestId{id};
  group->priority = priority;
  for (int sample = 0; sample < samples; ++sample)
    group->requests.push_back(std::make_unique<Request>(group.get(), sample, TextState()));
  return group;
}

std::vector<std::uint64_t> ids_of(const RequestList& list) {
  std::vector<std::uint64_t> ids;
  for (const Request* request : list.active()) ids.push_back(static_cast<std::uint64_t>(request->group().id));
  return ids;
}

TEST(RequestList, OrdersByPriorityAndThenByArrival) {
  RequestList list;
  list.add(group_of(1, 5));
  list.add(group_of(2, 0));
  list.add(group_of(3, 5));
  list.add(group_of(4, 0));
  list.add(group_of(5, -1, 2));
  EXPECT_EQ(ids_of(list), (std::vector<std::uint64_t>{5, 5, 2, 4, 1, 3}));
  EXPECT_EQ(list.size(), 5);
  EXPECT_EQ(list.find(RequestId{3})->priority, 5);
  EXPECT_EQ(list.find(RequestId{6}), nullptr);
}

TEST(RequestList, KeepsAGroupUntilAllItsSamplesHaveEnded) {
  RequestList list;
  list.add(group_of(1, 0, 2));
  list.add(group_of(2, 0));
  RequestGroup& first = *list.find(RequestId{1});
  static_cast<void>(first.requests[0]->end());
  EXPECT_EQ(ids_of(list), (std::vector<std::uint64_t>{1, 2})) << "an ended sample is not active";
  EXPECT_TRUE(list.has(RequestState::kEnded));
  EXPECT_EQ(list.remove_ended(), 0);
  EXPECT_EQ(list.size(), 2);
  static_cast<void>(first.requests[1]->end());
  EXPECT_EQ(list.remove_ended(), 1);
  EXPECT_EQ(list.find(RequestId{1}), nullptr);
  EXPECT_FALSE(list.has(RequestState::kEnded));
  EXPECT_TRUE(list.has(RequestState::kWaiting));
  EXPECT_EQ(list.holding_pages(), 0);
}

// Tokens count as run again up to the most that had run before.
TEST(RequestProgress, CountsTokensThatAreRunAgain) {
  RequestProgress progress;
  EXPECT_EQ(progress.note_run(30), 0);
  EXPECT_EQ(progress.note_run(50), 0);
  progress.run = 0;  // preempted
  EXPECT_EQ(progress.note_run(20), 20);
  progress.run = 0;
  EXPECT_EQ(progress.note_run(40), 40);
  EXPECT_EQ(progress.note_run(60), 10);
  EXPECT_EQ(progress.note_run(61), 0);
  EXPECT_EQ(progress.recomputed, 70);
  EXPECT_EQ(progress.most_run, 61);
}

}  // namespace
}  // namespace kvasir::test
