// SPDX-License-Identifier: Apache-2.0
#include "app/port_reservation.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

namespace tandem::app {
namespace {

/// A listening socket as servers make it (SO_REUSEADDR), or -1.
int listen_on(std::uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 && listen(fd, 1) == 0) return fd;
  close(fd);
  return -1;
}

TEST(PortReservation, AServerCanListenBesideIt) {
  auto reservation = PortReservation::reserve("127.0.0.1", 0);
  ASSERT_TRUE(reservation) << reservation.error().message();
  EXPECT_NE(reservation->port(), 0);
  const int server = listen_on(reservation->port());
  EXPECT_GE(server, 0);
  close(server);
}

TEST(PortReservation, APortInUseIsNamed) {
  auto free_port = PortReservation::reserve("127.0.0.1", 0);
  ASSERT_TRUE(free_port);
  const std::uint16_t port = free_port->port();
  free_port->release();
  const int server = listen_on(port);
  ASSERT_GE(server, 0);
  auto taken = PortReservation::reserve("127.0.0.1", port);
  ASSERT_FALSE(taken);
  EXPECT_THAT(taken.error().message(),
              testing::HasSubstr("127.0.0.1:" + std::to_string(port) + ": Address already in use by process " +
                                 std::to_string(getpid()) + " ("));
  close(server);
}

TEST(PortReservation, OwnerOfAFreePortIsNobody) {
  auto reservation = PortReservation::reserve("127.0.0.1", 0);
  ASSERT_TRUE(reservation);
  EXPECT_EQ(port_owner(reservation->port()), "") << "bound, but nobody listens";
}

TEST(PortReservation, UnknownHostsAreNamed) {
  auto reservation = PortReservation::reserve("no.such.host.invalid", 1234);
  ASSERT_FALSE(reservation);
  EXPECT_THAT(reservation.error().message(), testing::HasSubstr("no.such.host.invalid"));
}

}  // namespace
}  // namespace tandem::app
