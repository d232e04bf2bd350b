defmodule Sconce.Zoo.Vision do
  @moduledoc false
  # Networks of images: {name, task, thousands of parameters of the published code, declaration}.

  import Sconce.Zoo.Blocks

  def networks do
    [
      {:micro_yolo, "boxes in cells of 8x8 pixels", 25.2,
       input: [3, 96, 96],
       layers:
         conv(16, 3, stride: 2) ++
           conv(32, 3, stride: 2) ++ conv(64, 3, stride: 2) ++ [{:conv, 25, 1}]},
      {:efficient_edge, "8 classes of images", 7.9,
       input: [3, 128, 128],
       layers:
         conv(16, 3, stride: 2) ++
           separable(32, stride: 2) ++
           separable(64, stride: 2) ++ separable(48) ++ [:global_mean, {:dense, 8}]},
      {:segment_micro, "3 classes of each pixel", 46.8,
       input: [3, 64, 64],
       layers:
         conv(16, 3, stride: 2) ++
           conv(32, 3) ++
           [{:max_pool, 2}] ++
           conv(64, 3) ++
           conv(32, 3) ++
           [{:upsample, 2}] ++ conv(16, 3) ++ [{:upsample, 2}, {:conv, 3, 3, padding: 1}]},
      {:face_detect, "boxes of faces in cells of 8x8 pixels", 47.4,
       input: [1, 80, 80],
       layers:
         conv(16, 3) ++
           [{:max_pool, 2}] ++
           conv(32, 3) ++
           [{:max_pool, 2}] ++
           conv(64, 3) ++ [{:max_pool, 2}] ++ conv(40, 3) ++ [{:conv, 15, 1}]},
      {:gesture_net, "10 gestures of a hand", 47.0,
       input: [1, 48, 48],
       layers:
         conv(16, 3) ++
           [{:max_pool, 2}] ++
           conv(32, 3) ++
           [{:max_pool, 2}] ++
           conv(64, 3) ++ [{:max_pool, 2}] ++ conv(40, 3) ++ [:global_mean, {:dense, 10}]},
      {:ocr_nano, "37 characters at 32 places of a line of text", 69.3,
       input: [1, 32, 128],
       layers:
         conv(32, 3) ++
           [{:max_pool, 2}] ++
           conv(64, 3) ++
           [{:max_pool, 2}] ++
           conv(64, 3) ++
           [{:max_pool, [8, 1]}, {:conv, 60, [1, 3], padding: [0, 1], activation: :relu}] ++
           [{:conv, 37, 1}]},
      {:pose_estimate, "heat maps of 17 joints", 8.7,
       input: [3, 128, 128],
       layers:
         conv(16, 3, stride: 2) ++
           separable(32, stride: 2) ++
           separable(64, stride: 2) ++ separable(48) ++ [{:conv, 17, 1}]},
      {:depth_estimate, "the depth of each pixel", 98.3,
       input: [3, 128, 128],
       layers:
         conv(16, 3, stride: 2) ++
           conv(32, 3, stride: 2) ++
           conv(64, 3, stride: 2) ++
           conv(64, 3) ++
           [{:upsample, 2}] ++
           conv(48, 3) ++
           [{:upsample, 2}] ++ conv(24, 3) ++ [{:upsample, 2}, {:conv, 1, 3, padding: 1}]},
      {:object_track, "a box in the cut-out of a frame", 286,
       input: [3, 64, 64],
       layers:
         conv(16, 3, stride: 2) ++
           conv(32, 3, stride: 2) ++
           conv(64, 3, stride: 2) ++ [:flatten, {:dense, 64, activation: :relu}, {:dense, 4}]},
      {:scene_understand, "8 classes of scenes", 8.0,
       input: [3, 96, 96],
       layers:
         conv(16, 3, stride: 2) ++
           separable(32, stride: 2) ++
           separable(64, stride: 2) ++ separable(48) ++ [:global_mean, {:dense, 8}]}
    ]
  end
end
