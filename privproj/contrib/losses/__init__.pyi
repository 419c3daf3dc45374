from privproj.contrib.losses.loss import (
    Conversion as Conversion,
    PrivacyLoss as PrivacyLoss,
    convert as convert,
    privacy_loss as privacy_loss,
)
