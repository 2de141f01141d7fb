// Times of Pinocchio's algorithms on a mechanism that stands in the input, and the accelerations.
//
// Input: gravity; number of joints, and of each its parent, kind ("free", "x", "y", "z" or "any"
// with an axis), place and rotation by rows in the parent, armature, mass, centre and inertia by
// rows; number of closures (0 or 1), and of it two joints and a point of each; q and v.
// Output: a line for each algorithm, its name and nanoseconds of each round; then "a" and numbers.

#include <chrono>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include <pinocchio/multibody.hpp>
#include <pinocchio/algorithm/aba.hpp>
#include <pinocchio/algorithm/aba-derivatives.hpp>
#include <pinocchio/algorithm/constrained-dynamics.hpp>
#include <pinocchio/algorithm/constrained-dynamics-derivatives.hpp>

namespace pin = pinocchio;
using Vector3 = Eigen::Vector3d;
using Matrix3 = Eigen::Matrix3d;

static Vector3 vector() {
  Vector3 x;
  for (int i = 0; i < 3; ++i) std::cin >> x[i];
  return x;
}

static Matrix3 matrix() {
  Matrix3 x;
  for (int i = 0; i < 9; ++i) std::cin >> x(i / 3, i % 3);
  return x;
}

static void timed(const std::string& name, int rounds, const std::function<void()>& call) {
  using clock = std::chrono::steady_clock;
  const auto nanoseconds = [&](int count) {
    const auto began = clock::now();
    for (int i = 0; i < count; ++i) call();
    return std::chrono::duration<double, std::nano>(clock::now() - began).count() / count;
  };
  const int count = 1 + static_cast<int>(2e6 / nanoseconds(100));
  std::cout << name;
  for (int i = 0; i < rounds; ++i) std::cout << " " << nanoseconds(count);
  std::cout << "\n";
}

int main(int, char** argv) {
  const int rounds = std::stoi(argv[1]);
  std::cout.precision(17);
  pin::Model model;
  model.gravity.linear() = vector();
  std::size_t joints;
  std::cin >> joints;
  std::vector<double> armature;
  for (std::size_t i = 1; i <= joints; ++i) {
    std::size_t parent;
    std::string kind;
    std::cin >> parent >> kind;
    const Vector3 axis = kind == "any" ? vector() : Vector3::Zero();
    const Vector3 place = vector();
    const pin::SE3 pose(matrix(), place);
    const std::string name = "joint " + std::to_string(i);
    if (kind == "free") model.addJoint(parent, pin::JointModelFreeFlyer(), pose, name);
    if (kind == "x") model.addJoint(parent, pin::JointModelRX(), pose, name);
    if (kind == "y") model.addJoint(parent, pin::JointModelRY(), pose, name);
    if (kind == "z") model.addJoint(parent, pin::JointModelRZ(), pose, name);
    if (kind == "any") model.addJoint(parent, pin::JointModelRevoluteUnaligned(axis), pose, name);
    double rotor, mass;
    std::cin >> rotor >> mass;
    const Vector3 centre = vector();
    model.appendBodyToJoint(i, pin::Inertia(mass, centre, matrix()), pin::SE3::Identity());
    for (int k = 0; k < (kind == "free" ? 6 : 1); ++k) armature.push_back(rotor);
  }
  model.armature = Eigen::Map<Eigen::VectorXd>(armature.data(), model.nv);
  int closures;
  std::cin >> closures;
  PINOCCHIO_COMPILER_DIAGNOSTIC_PUSH
  PINOCCHIO_COMPILER_DIAGNOSTIC_IGNORED_DEPRECECATED_DECLARATIONS
  std::vector<pin::RigidConstraintModel, Eigen::aligned_allocator<pin::RigidConstraintModel>> models;
  std::vector<pin::RigidConstraintData, Eigen::aligned_allocator<pin::RigidConstraintData>> facts;
  for (int i = 0; i < closures; ++i) {
    std::size_t one, other;
    std::cin >> one >> other;
    const pin::SE3 first(Matrix3::Identity(), vector());
    const pin::SE3 second(Matrix3::Identity(), vector());
    models.emplace_back(pin::CONTACT_3D, model, one, first, other, second, pin::LOCAL);
    facts.emplace_back(models.back());
  }
  Eigen::VectorXd q(model.nq), v(model.nv), none = Eigen::VectorXd::Zero(model.nv);
  for (int i = 0; i < model.nq; ++i) std::cin >> q[i];
  for (int i = 0; i < model.nv; ++i) std::cin >> v[i];

  pin::Data data(model);
  if (closures == 0) {
    timed("aba", rounds, [&] { pin::aba(model, data, q, v, none, pin::Convention::LOCAL); });
    timed("computeABADerivatives", rounds, [&] { pin::computeABADerivatives(model, data, q, v, none); });
  } else {
    pin::initConstraintDynamics(model, data, models, facts);
    pin::ProximalSettings settings(1e-12, 1e-12, 1e-8, 20);
    const auto solve = [&] { pin::constraintDynamics(model, data, q, v, none, models, facts, settings); };
    const auto both = [&] {
      solve();
      pin::computeConstraintDynamicsDerivatives(model, data, models, facts);
    };
    timed("constraintDynamics", rounds, solve);
    timed("computeConstraintDynamicsDerivatives", rounds, both);
  }
  std::cout << "a " << data.ddq.transpose() << "\n";
}
