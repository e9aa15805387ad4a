"""Where quarantined mail is kept, and for how long.

Part of the configuration (`bridge.config.model`).
"""

from __future__ import annotations

from pydantic import Field, ValidationInfo, field_validator

from bridge.config.fields import FILE_LOOKUP, Section, base_url
from bridge.runtime.units import Duration, Size


class S3(Section):
    allow_plain_http: bool = Field(
        False, description="Allow http:// to a host that is not a loopback address. Mail is then sent unencrypted."
    )
    bucket: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{1,62}$", description="Name of the bucket. It must exist.")
    endpoint: str | None = Field(None, description="Base URL of the server. Default: Amazon S3.")
    region: str = Field(
        "us-east-1",
        pattern=r"^[A-Za-z0-9-]{1,64}$",
        description="Region of the bucket. Most servers other than Amazon's ignore it.",
    )
    prefix: str = Field(
        "",
        pattern=r"^([A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*)?$",
        description="Prefix of the object names, without a trailing slash.",
    )
    access_key_file: str | None = Field(
        None,
        description=f"File that contains the access key. {FILE_LOOKUP} "
        "Default: the environment variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
    )
    secret_key_file: str | None = Field(
        None, validate_default=True, description=f"File that contains the secret key. {FILE_LOOKUP}"
    )
    ca_file: str | None = Field(
        None, description="File that contains CA certificates (PEM) to trust in addition to the system's."
    )

    @field_validator("endpoint")
    @classmethod
    def _endpoint(cls, url: str | None, info: ValidationInfo) -> str | None:
        return None if url is None else base_url(url, bool(info.data.get("allow_plain_http")))

    @field_validator("secret_key_file")
    @classmethod
    def _pair(cls, secret: str | None, info: ValidationInfo) -> str | None:
        if bool(secret) != bool(info.data.get("access_key_file")):
            raise ValueError("access_key_file and secret_key_file must be set together")
        return secret


class Quarantine(Section):
    directory: str = Field("quarantine", description="Directory of quarantined mail, relative to the state directory.")
    s3: S3 | None = Field(
        None,
        description="Keep quarantined mail in S3-compatible object storage. The directory then holds only "
        "`actions.log`.",
    )
    retention: Duration = Field(
        30 * 86400.0, ge=3600, description="How long quarantined mail is kept before it is deleted; at least `1h`."
    )
    max_size: Size | None = Field(
        None,
        ge=1,
        description="Maximum total size of all quarantined mail. Further mail for the quarantine is answered with "
        "452 4.3.1; stored mail is never deleted to make room. Default: no limit.",
    )
    release_key_file: str | None = Field(
        None,
        description="File that contains the key that marks released mail, so that it is not quarantined again. It "
        f"must be the same on all machines that released mail may pass through. {FILE_LOOKUP} Default: a generated "
        "key in the state directory.",
    )
