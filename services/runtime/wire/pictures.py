"""Pictures of the cluster, for people."""

from __future__ import annotations

from headway.picture import ClusterPicture
from protos import scheduler_pb2 as pb
from services.runtime.wire.codec import Codec, codec_of

PICTURE: Codec[ClusterPicture] = codec_of(ClusterPicture, pb.ClusterPicture)
