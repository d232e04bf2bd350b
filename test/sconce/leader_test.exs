defmodule Sconce.LeaderTest do
  use ExUnit.Case, async: true

  doctest Sconce.Leader
  doctest Sconce.Leader.Events
end
