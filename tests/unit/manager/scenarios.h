// tests/unit/manager/scenarios.h: the steps that many tests of the manager share.
#ifndef GPUMEM_TESTS_UNIT_MANAGER_SCENARIOS_H_
#define GPUMEM_TESTS_UNIT_MANAGER_SCENARIOS_H_

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/manager/world.h"

namespace gpumem::manager::testing {

inline core::ChunkSpec Spec(std::uint8_t device, std::uint64_t bytes, std::uint32_t count) {
  return {TestDevice(device), Bytes(bytes), count};
}

inline std::vector<ChunkId> Ids(const Grant& grant) {
  std::vector<ChunkId> ids;
  for (const core::ChunkView& view : grant.chunks) ids.push_back(view.chunk);
  return ids;
}

inline Answer<Grant> Allocate(World& world, World::Worker& worker, std::vector<core::ChunkSpec> specs) {
  Answer<Grant> answer;
  world.manager().Allocate(worker.session, worker.next_request++, worker.holder, std::move(specs), answer.reply());
  world.RunUntilIdle();
  return answer;
}

inline Answer<Grant> Build(World& world, World::Worker& worker, const std::string& name,
                           std::vector<core::ChunkSpec> specs) {
  Answer<Grant> answer;
  world.manager().BuildSegment(worker.session, worker.next_request++, worker.holder, name, std::move(specs),
                               answer.reply());
  world.RunUntilIdle();
  return answer;
}

// The owner unmaps first, as a living owner does.
inline Answer<ReleaseResult> Release(World& world, World::Worker& worker, const Grant& grant,
                                     core::Outcome outcome = core::Outcome::kUnmapped) {
  Answer<ReleaseResult> answer;
  if (outcome == core::Outcome::kUnmapped) world.DropImports(worker, Ids(grant));
  world.manager().Release(worker.session, worker.next_request++, grant.lease, {outcome}, answer.reply());
  world.RunUntilIdle();
  return answer;
}

inline Answer<std::string> Seal(World& world, World::Worker& worker, const Grant& grant, core::Manifest manifest = {}) {
  Answer<std::string> answer;
  world.DropImports(worker, Ids(grant));
  world.manager().SealSegment(worker.session, worker.next_request++, grant.lease, {core::Outcome::kUnmapped},
                              std::move(manifest), answer.reply());
  world.RunUntilIdle();
  return answer;
}

inline Answer<AttachResult> Attach(World& world, World::Worker& worker, const std::string& name) {
  Answer<AttachResult> answer;
  world.manager().AttachSegment(worker.session, worker.next_request++, worker.holder, name, answer.reply());
  world.RunUntilIdle();
  return answer;
}

// Grants, receives and acknowledges.
inline Grant Hold(World& world, World::Worker& worker, std::vector<core::ChunkSpec> specs) {
  const Answer<Grant> answer = Allocate(world, worker, std::move(specs));
  EXPECT_TRUE(answer.ok()) << answer.status();
  world.ReceiveAll(worker);
  world.RunUntilIdle();
  return answer.ok() ? answer.value() : Grant();
}

inline std::string Publish(World& world, World::Worker& worker, const std::string& name,
                           std::vector<core::ChunkSpec> specs) {
  const Answer<Grant> built = Build(world, worker, name, std::move(specs));
  EXPECT_TRUE(built.ok()) << built.status();
  if (!built.ok()) return "";
  world.ReceiveAll(worker);
  world.RunUntilIdle();
  const Answer<std::string> sealed = Seal(world, worker, built.value());
  EXPECT_TRUE(sealed.ok()) << sealed.status();
  return sealed.ok() ? sealed.value() : "";
}

inline Bytes Charged(const World& world, std::uint8_t device) {
  return world.books().Device(TestDevice(device))->charged;
}

}  // namespace gpumem::manager::testing

#endif  // GPUMEM_TESTS_UNIT_MANAGER_SCENARIOS_H_
